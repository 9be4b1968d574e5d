"""Semi-online training: the policy acts where an expert was recorded, and a patch takes it back to the recording.

    right turn:  reward 1 / turns, and what the expert was told next
    wrong turn:  reward 0; a patch says what the expert did and goes on there, or the episode ends when none is left

Source: UI-S1, arXiv 2509.11543, and its released code (`patch_threshold`, -1 for no limit). In the paper the patch
takes the place of the policy's wrong turn in the history; here the turn stays, as every sampled token does, and the
patch answers it. The policy's thoughts about a patch are not part of this. The advantage `ui_s1` cuts credit at a
wrong turn, by `Step.matches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.registry import load_env
from asyncrl.env.tasks import read_task_file
from asyncrl.envs.recorded.recording import RecordedTurn, Recording, read_recording, record
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task


class Recorded(Env):
    """Play along with recorded episodes of an expert.

    patches: wrong turns that are patched on training tasks, -1 for all of them. A held-out episode ends with its first.
    of, config: environment whose scripted expert is recorded, where tasks hold no recordings, and its settings.
    heldout: task file with recordings for held-out tasks.
    """

    provides = frozenset({"components", "matches"})
    blocking: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        patches: int = 0,
        of: str = "",
        config: dict[str, Any] | None = None,
        heldout: str = "",
    ) -> None:
        super().__init__(task)
        if patches < -1:
            raise ValueError(f"patches: must be at least -1, got {patches}")
        self.patches = patches if task.split != "heldout" else 0
        self.recorded_from = self.inner_task(task, patches, of, config)
        self.recording: Recording | None = (
            None if self.recorded_from is not None else read_recording(task.data)
        )
        if self.recording is not None:
            self._start(self.recording)
        self.turn = self.patched = 0

    @classmethod
    def tasks(  # type: ignore[override]
        cls,
        split: str,
        env: str,
        patches: int = 0,
        of: str = "",
        config: dict[str, Any] | None = None,
        heldout: str = "",
    ) -> Iterator[Task]:
        """Yield the held-out recordings, or the tasks of the environment that is recorded. Raises `ConfigError`."""
        if split == "heldout" and heldout:
            for task in read_task_file(heldout, env):
                yield replace(task, split=split)
            return
        if not of:
            raise ConfigError(
                "env.config: recorded needs `of`, an environment whose expert is recorded, or recordings: those of "
                "training in env.task_file, held-out ones in env.config.heldout (or eval.tasks=0)"
            )
        for task in load_env(of, "env.config.of").tasks(split, of, **(config or {})):
            yield replace(task, env=env)

    @classmethod
    def inner_task(  # type: ignore[override]
        cls,
        task: Task,
        patches: int = 0,
        of: str = "",
        config: dict[str, Any] | None = None,
        heldout: str = "",
    ) -> tuple[Task, dict[str, Any]] | None:
        """Return the task of the environment that is recorded; None where the task holds its recording."""
        if not of or "turns" in task.data:
            return None
        return replace(task, env=of), dict(config or {})

    @classmethod
    def inner(
        cls, patches: int = 0, of: str = "", config: dict[str, Any] | None = None, heldout: str = ""
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield key, environment and settings of the one that is recorded, to be checked before a run starts."""
        if of:
            yield "config", of, dict(config or {})

    @classmethod
    def missing(cls) -> str:
        """Return what prevents it from starting without settings."""
        return "settings: of, or recordings in env.task_file"

    async def reset(self) -> list[Message]:
        if self.recorded_from is not None:
            self.recording = await record(*self.recorded_from)
            self._start(self.recording)
        assert self.recording is not None
        return list(self.recording.opening)

    def _start(self, recording: Recording) -> None:
        self.tools = list(recording.tools)  # type: ignore[misc]
        self.max_turns = len(recording.turns)

    def step(self, action: Action) -> Step:
        """Compare the action with the expert's."""
        assert self.recording is not None
        turns = self.recording.turns
        turn = turns[self.turn]
        self.turn += 1
        matches, last = turn.matches(action), self.turn == len(turns)
        reward = matches / len(turns)
        self.patched += not matches
        components = {"patched": float(not matches)}
        if last or (not matches and -1 < self.patches < self.patched):
            return Step(
                reward=reward,
                done=True,
                success=last and not self.patched,
                components=components,
                matches=matches,
            )
        messages = _next(turn, action) if matches else _patch(turn, action)
        return Step(messages, reward, components=components, matches=matches)

    def oracle(self, messages: list[Message]) -> Message:
        """Return what the expert said in this turn."""
        assert self.recording is not None
        return self.recording.turns[self.turn].message

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Act as the random policy of the environment that is recorded."""
        if self.recorded_from is None:
            raise NotImplementedError
        task, config = self.recorded_from
        return load_env(task.env)(task, **config).random_policy(messages, rng)


def _next(turn: RecordedTurn, action: Action) -> list[Message]:
    """Return what the expert was told, as the answers to the policy's own calls."""
    ids = iter(action.call_ids())
    return [m | {"tool_call_id": next(ids, "")} if m["role"] == "tool" else m for m in turn.messages]


def _patch(turn: RecordedTurn, action: Action) -> list[Message]:
    """Return what the expert did and was told then."""
    answers: list[Message] = [
        {"role": "tool", "tool_call_id": call_id, "content": "not carried out"}
        for call_id in action.call_ids()
    ]
    expert = turn.accepted[0]
    calls = [f"{call.name} {call.arguments}" for call in expert.tool_calls]
    texts = [str(message["content"]) for message in turn.messages]
    lines = [f"Not that. The expert: {' '.join(part for part in (expert.content, *calls) if part)}", *texts]
    return [*answers, {"role": "user", "content": "\n".join(lines)}]
