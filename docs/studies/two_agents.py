"""Gridworld for two agents that move by turns: the environment of two_agents.toml."""

from __future__ import annotations

from dataclasses import replace

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task

PARTNER = "partner"


class TwoAgents(Gridworld):
    """Main agent and partner move by turns, and each sees where the goal is, in a conversation of its own.

    Both earn the reward of the episode. `max_turns` counts the moves of both.
    """

    def __init__(self, task: Task, size: int = 5, max_turns: int = 8) -> None:
        super().__init__(task, size, max_turns)
        self.mover = MAIN_AGENT

    def step(self, action: Action) -> Step:
        """See `Gridworld.step`; then it is the other agent's turn."""
        step = super().step(action)
        other = PARTNER if self.mover == MAIN_AGENT else MAIN_AGENT
        if step.done:
            return replace(step, rewards={other: step.reward} if self.turn > 1 else {})
        self.mover = other
        return replace(step, agent=other)
