"""Collects one episode's tokens and turns into a `Trajectory`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.data.transcript import encode_transcript
from asyncrl.env.protocol import Step
from asyncrl.errors import InfrastructureError, InputError
from asyncrl.generation import Generated, engines_of
from asyncrl.images import MAX_IMAGES, images_in, moved
from asyncrl.types import (
    EXTRACTED,
    NOT_SAMPLED,
    FailureClass,
    Message,
    PlacedImage,
    Status,
    Task,
    Trajectory,
    Turn,
)

NO_TOKENS = np.empty(0, np.int32)


class TrajectoryBuilder:
    """Append-only: context tokens, sampled turns, rewards. `finish` freezes them."""

    def __init__(self, task: Task, episode_index: int) -> None:
        self.task = task
        self.episode_index = episode_index
        self.started = time.monotonic()
        self.conversation: list[Message] = []
        """The messages so far, kept by the player of the episode; a judge reads them."""
        self.turn_messages: list[tuple[int, str]] = []
        """Place in `conversation` of each turn, and its text where the message does not hold all of it."""
        self.cut_text = ""
        """Text of a turn that was cut off; it is not a message of the conversation."""
        self.engine_s = 0.0
        self.env_s = 0.0
        self.cached_tokens = 0
        self.num_tokens = 0
        self._ids: list[np.ndarray] = []
        self._logprobs: list[np.ndarray] = []
        self._versions: list[np.ndarray] = []
        self._turns: list[Turn] = []
        self._routed: list[np.ndarray] = []
        self.num_routed = 0
        """How many tokens, from the first, the engine has reported the experts of."""
        self._commitments: list[bytes] = []
        self._engines: list[str] = []
        """Of each turn."""
        self._observation_id = ""
        self.components: dict[str, float] = {}
        self.extracted = ""
        self.success: bool | None = None
        self.images: tuple[PlacedImage, ...] = ()
        """What the agent has seen, by the places of its tokens."""

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    def token_ids(self) -> np.ndarray:
        """Return the context so far. [L] int32."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0] if self._ids else NO_TOKENS

    def add_context(
        self, token_ids: np.ndarray, observation_id: str = "", images: Sequence[PlacedImage] = ()
    ) -> None:
        """Append tokens that were not sampled; the next turn answers `observation_id`.

        images: what some of the tokens stand for, counted from the first of them.
        """
        self._see(images)
        self._append(
            token_ids, np.zeros(len(token_ids), np.float32), np.full(len(token_ids), NOT_SAMPLED, np.int32)
        )
        self._observation_id = observation_id

    def add_turn(self, generated: Generated) -> None:
        """Append a sampled turn, with the experts of the tokens from `num_routed` on where the engine reports them."""
        start, observation_id = self.num_tokens, self._observation_id
        self._append(generated.token_ids, generated.logprobs, generated.versions)
        if generated.routed_experts is not None:
            self._add_experts(generated.routed_experts)
        self._commitments += generated.commitments
        self._engines.append(generated.engine)
        self._turns.append(Turn(start, self.num_tokens, 0.0, observation_id))
        self.cached_tokens += generated.cached_tokens

    def add_given_turn(self, token_ids: np.ndarray) -> None:
        """Append a turn that the policy did not sample here: it is played and credited, but not trained."""
        start, observation_id = self.num_tokens, self._observation_id
        self.add_context(token_ids, observation_id)
        self._engines.append("")
        self._turns.append(Turn(start, self.num_tokens, 0.0, observation_id))

    def drop_context(self) -> None:
        """Remove the context after the last turn, which no turn answered. The opening messages stay."""
        if not self._turns or self._turns[-1].end == self.num_tokens:
            return
        self.num_tokens = self._turns[-1].end
        self._ids = [self.token_ids()[: self.num_tokens]]
        self._logprobs = [np.concatenate(self._logprobs)[: self.num_tokens]]
        self._versions = [np.concatenate(self._versions)[: self.num_tokens]]
        self.images = images_in(self.images, 0, self.num_tokens)

    def last_turn(self) -> np.ndarray:
        """Return the ids of the turn sampled last. [N] int32."""
        turn = self._turns[-1]
        return self.token_ids()[turn.start : turn.end]

    def sampled_turns(self) -> list[np.ndarray]:
        """Return the ids of every sampled turn, in order. [N] int32 each."""
        ids = self.token_ids()
        return [ids[turn.start : turn.end] for turn in self._turns]

    def add_step(self, step: Step) -> None:
        """Record the environment's answer to the last turn: reward, reward components, matches and success."""
        self.add_reward(step.reward)
        self._turns[-1] = replace(self._turns[-1], matches=step.matches)
        for name, value in step.components.items():
            self.components[name] = self.components.get(name, 0.0) + value
        self.extracted = step.extracted or self.extracted
        if step.success is not None:
            self.success = step.success

    def add_reward(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        self._turns[-1] = replace(self._turns[-1], reward=self._turns[-1].reward + reward)

    def finish(
        self,
        status: Status,
        failure: FailureClass | None = None,
        error: str = "",
        info: dict[str, Any] | None = None,
    ) -> Trajectory:
        """Return the trajectory."""
        versions = np.concatenate(self._versions) if self._versions else np.empty(0, np.int32)
        wall_s = time.monotonic() - self.started
        return Trajectory(
            task_id=self.task.id,
            episode_index=self.episode_index,
            token_ids=self.token_ids(),
            loss_mask=versions != NOT_SAMPLED,
            behavior_logprobs=np.concatenate(self._logprobs) if self._logprobs else np.empty(0, np.float32),
            versions=versions,
            turns=tuple(self._turns),
            reward=float(sum(turn.reward for turn in self._turns)),
            status=status,
            components=self.components,
            success=self.success,
            failure=failure,
            error=error[:2000],
            timing={"wall_s": wall_s, "engine_s": self.engine_s, "env_s": self.env_s},
            info={
                "cached_tokens": self.cached_tokens,
                **({EXTRACTED: self.extracted} if self.extracted else {}),
                **(info or {}),
            },
            conversation=self._transcript(),
            routed_experts=np.concatenate(self._routed) if self._routed else None,
            images=self.images,
            commitments=tuple(self._commitments),
            engines=engines_of(self._engines),
        )

    def _add_experts(self, experts: np.ndarray) -> None:
        """Append the experts [M,layers,K] of the tokens that the engine read and had not reported yet.

        It never read the last token, nor will it where a turn is the last one.
        """
        expected = self.num_tokens - 1 - self.num_routed
        if len(experts) != expected:
            raise InfrastructureError(
                f"the engine reported the experts of {len(experts)} tokens, where it had read {expected} new ones"
            )
        self._routed.append(experts)
        self.num_routed += expected

    def _see(self, images: Sequence[PlacedImage]) -> None:
        known = {image.key: image.data for image in self.images}
        one_copy = [replace(i, data=known.setdefault(i.key, i.data)) for i in images]
        self.images += moved(one_copy, self.num_tokens)
        if len(self.images) > MAX_IMAGES:
            raise InputError(f"the conversation holds more than {MAX_IMAGES} images")

    def _transcript(self) -> str:
        messages, turns = list(self.conversation), {}
        for number, (place, text) in enumerate(self.turn_messages):
            turns[place] = number
            if text:
                messages[place] = {**messages[place], "content": text}
        if self.cut_text:
            turns[len(messages)] = len(self.turn_messages)
            messages.append({"role": "assistant", "content": self.cut_text})
        return encode_transcript(messages, turns)

    def _append(self, token_ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray) -> None:
        self._ids.append(token_ids)
        self._logprobs.append(logprobs)
        self._versions.append(versions)
        self.num_tokens += len(token_ids)
