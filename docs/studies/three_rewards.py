"""Gridworld with three rewards that pull in different directions: the environment of three_rewards.toml."""

from __future__ import annotations

from asyncrl.env.protocol import Action, Step
from asyncrl.envs.gridworld.env import MOVES, Gridworld
from asyncrl.types import Task


class ThreeRewards(Gridworld):
    """An episode earns 1 for each of three things; it is a success if it earns all of them.

    `goal`: it reaches the goal. `straight`: its direction changes at most once. `tidy`: no turn is an unknown word or
    leads into the border. Who always goes the same way earns `straight`, and seldom the others.
    """

    def __init__(self, task: Task, size: int = 5, max_turns: int = 8) -> None:
        super().__init__(task, size, max_turns)
        self.words: list[str] = []
        self.bumped = False

    def step(self, action: Action) -> Step:
        """See `Gridworld.step`; the last turn's step has the rewards of the episode."""
        word, before = action.content.strip().lower(), (self.x, self.y)
        step = super().step(action)
        self.words.append(word)
        self.bumped |= word not in MOVES or (self.x, self.y) == before
        if not step.done:
            return Step(step.messages, observation_id=step.observation_id)
        changes = sum(one != other for one, other in zip(self.words, self.words[1:], strict=False))
        earned = {
            "goal": float(bool(step.success)),
            "straight": float(changes <= 1),
            "tidy": float(not self.bumped),
        }
        total = sum(earned.values())
        return Step(reward=total, done=True, success=total == 3, components=earned)
