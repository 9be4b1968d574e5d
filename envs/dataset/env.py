"""A row of a data set: its prompt is asked once, and what `data.reward` names scores the answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.rewards import Completion, Reward, load_reward
from asyncrl.rewards.golds import gold_check
from asyncrl.rows.data import open_data
from asyncrl.rows.question import labelled_choices
from asyncrl.rows.scan import MESSAGES
from asyncrl.rows.settings import resolved, settings_from
from asyncrl.rows.template import ANSWER
from asyncrl.types import Message, Task

IN_PLACE = ("exact", "choice")
"""Rewards that take microseconds, start no process and run nothing that anybody has written."""
MARK = "####"
"""Before the final answer of GSM8K's solutions."""


class Dataset(Env):
    """Rows of a data set, a question each, scored by a reward; its settings are those of `[data]`."""

    max_turns = 1
    provides = frozenset({"components"})

    def __init__(self, task: Task, data: dict[str, Any], tokenizer: str = "") -> None:
        """data: `[data]`. tokenizer: counts tokens for `data.max_prompt_tokens`."""
        super().__init__(task)
        self.reward = reward_of(json.dumps(data))

    @classmethod
    def tasks(cls, split: str, env: str, data: dict[str, Any], tokenizer: str = "") -> Iterator[Task]:  # type: ignore[override]
        """Yield the rows of a split: those to train on without end, each once an epoch, held-out ones once.

        Raises as `open_data` does.
        """
        yield from open_data(settings_from(data), tokenizer, golds=gold_check).tasks(split, env)

    @classmethod
    def in_worker_with(cls, data: dict[str, Any], tokenizer: str = "") -> bool:
        """Return whether sessions may run in a rollout worker: where the reward neither blocks nor runs code."""
        spec = resolved(settings_from(data)).reward
        parts = [spec] if isinstance(spec, str) else spec
        return all((part if isinstance(part, str) else part.get("name")) in ("", *IN_PLACE) for part in parts)

    @classmethod
    def missing(cls) -> str:
        """Return what prevents it from starting without settings."""
        return "settings: data.train, or the name of a known set as env.name"

    def reset(self) -> list[Message]:
        return list(self.task.data[MESSAGES])

    async def step(self, action: Action) -> Step:
        if self.reward is None:
            return Step(done=True)
        row = {key: value for key, value in self.task.data.items() if key != MESSAGES}
        given = Completion(self.reset(), action.content, action.reasoning, row)
        (score,) = await self.reward.score([given])
        return Step(
            reward=score.total,
            done=True,
            success=score.success,
            components=score.components,
            extracted=score.extracted or "",
        )

    def oracle(self, messages: list[Message]) -> Message:
        """Answer with the row's answer. Raises `NotImplementedError` for a row without one."""
        return {"role": "assistant", "content": self._right()}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Answer with something of the answer's kind: a number of as many digits, a choice, or a word of the prompt."""
        right = self._right()
        if right.lstrip("-").isdigit():
            answer = str(rng.randrange(10 ** len(right.lstrip("-"))))
        elif choices := labelled_choices(self.task.data):
            answer = rng.choice(choices)[0]
        else:
            content = messages[-1].get("content")
            words = content.split() if isinstance(content, str) else []
            answer = rng.choice(words or ["?"])
        return {"role": "assistant", "content": answer}

    def problem_key(self) -> str:
        """Return the prompt, which no row of the other split has."""
        return json.dumps(
            [message for message in self.reset() if message["role"] != "system"], sort_keys=True
        )

    def _right(self) -> str:
        answer = self.task.data.get(ANSWER)
        answer = answer[0] if isinstance(answer, list) and answer else answer
        if not isinstance(answer, str | int | float) or answer == "":
            raise NotImplementedError
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        return str(answer).rpartition(MARK)[2].strip()


@functools.lru_cache(maxsize=8)
def reward_of(data: str) -> Reward | None:
    """Return the reward of the settings, as JSON, for all episodes of this process; None where a judge scores them."""
    spec = resolved(settings_from(json.loads(data))).reward
    return load_reward(spec) if spec else None
