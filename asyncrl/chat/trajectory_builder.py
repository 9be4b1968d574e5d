"""Collects one episode's tokens and turns into a `Trajectory`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.data.token_extras.table import collectors
from asyncrl.data.transcript import encode_transcript
from asyncrl.env.protocol import Step
from asyncrl.generation import Generated, engines_of
from asyncrl.types import (
    EXTRACTED,
    NOT_SAMPLED,
    FailureClass,
    Message,
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
        """The messages so far, kept by the player of the episode, for whoever scores it."""
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
        self.collected = collectors()
        """The extras of the tokens, by their kind."""
        self._engines: list[str] = []
        """The engine of each turn."""
        self._observation_id = ""
        self.components: dict[str, float] = {}
        self.extracted = ""
        self.success: bool | None = None

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    def token_ids(self) -> np.ndarray:
        """Return the context so far. [L] int32."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0] if self._ids else NO_TOKENS

    def add_context(
        self, token_ids: np.ndarray, observation_id: str = "", extras: Mapping[str, Any] | None = None
    ) -> None:
        """Append tokens that were not sampled; the next turn answers `observation_id`.

        extras: of these tokens, by their kind.
        """
        start = self.num_tokens
        self._append(
            token_ids, np.zeros(len(token_ids), np.float32), np.full(len(token_ids), NOT_SAMPLED, np.int32)
        )
        self._collect(extras or {}, start)
        self._observation_id = observation_id

    def add_turn(self, generated: Generated) -> None:
        """Append a sampled turn, with what the engine reports of it and of what it had read before."""
        start, observation_id = self.num_tokens, self._observation_id
        self._append(generated.token_ids, generated.logprobs, generated.versions)
        self._collect(generated.extras, start)
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
        for collector in self.collected.values():
            collector.drop(self.num_tokens)

    def asked(self) -> dict[str, Any]:
        """Return the extras of the next `GenerateRequest`."""
        found = {name: collector.asked() for name, collector in self.collected.items()}
        return {name: value for name, value in found.items() if value is not None}

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
            engines=engines_of(self._engines),
            extras=self._extras(),
        )

    def _collect(self, extras: Mapping[str, Any], start: int) -> None:
        for name, piece in extras.items():
            self.collected[name].add(piece, start, self.num_tokens)

    def _extras(self) -> dict[str, Any]:
        found = {name: collector.value() for name, collector in self.collected.items()}
        return {name: value for name, value in found.items() if value is not None}

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
