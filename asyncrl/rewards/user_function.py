"""A user's function as a reward: found by its import path, called in processes of its own, and held to its contract."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.import_path import load_object
from asyncrl.machine import usable_cpus
from asyncrl.rewards.protocol import Completion, NotJudged, Score
from asyncrl.rewards.rows import describe_row
from asyncrl.rewards.signatures import Signature
from asyncrl.rewards.user_process import UserProcess
from asyncrl.types import MAX_REWARD

MAIN = Path(__file__).with_name("user_main.py")
TIMEOUT_S = 60.0
PROCESSES = min(8, max(2, usable_cpus()))
"""The processes of a plain function: so many calls run at once. All calls of a coroutine function share one."""


class UserFunction:
    """The function at `path`. `timeout_s` is for each call. `may_skip`: whether it may return None for an answer."""

    def __init__(self, path: str, key: str, timeout_s: float = TIMEOUT_S, may_skip: bool = False) -> None:
        function = load_object(key, path)
        if not callable(function) or inspect.isclass(function):
            raise ConfigError(f"{key}: {path!r} must be a function, got {type(function).__name__}")
        try:
            self.signature = Signature(function)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}: {path!r}: {error}") from error
        self.path, self.timeout_s, self.may_skip = path, timeout_s, may_skip
        # Not its `__name__`, which is "<lambda>" or that of what decorates it.
        self.name = path.rpartition(":")[2]
        count = 1 if inspect.iscoroutinefunction(function) else PROCESSES
        self._process = UserProcess(
            [sys.executable, "-P", str(MAIN)], {"path": sys.path, "function": path}, count, path
        )

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        for one in completions:
            if (why := self.check_row(one.row)) is not None:
                raise NotJudged(self._described(one, why))
        if self.signature.is_batch:
            values = await self._call(completions)
        else:
            found = await asyncio.gather(*(self._call([one]) for one in completions), return_exceptions=True)
            values = []
            for result in found:
                # The first that failed is told, in their order.
                if isinstance(result, BaseException):
                    raise result
                values += result
        return [self._score(one, value) for one, value in zip(completions, values, strict=True)]

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`: None unless the function asks for a column that is not there."""
        return self.signature.missing(row)

    def close(self) -> None:
        """End the processes. The next call starts others."""
        self._process.close()

    async def _call(self, completions: Sequence[Completion]) -> list[Any]:
        first = completions[0]
        try:
            items = json.dumps([_item(one) for one in completions], default=_jsonable)
        except (TypeError, ValueError) as error:
            raise NotJudged(
                self._described(first, f"its row cannot be passed to the function: {error}")
            ) from None
        try:
            reply = await self._process.ask(items, self.timeout_s)
        except TimeoutError:
            raise NotJudged(self._described(first, f"did not return within {self.timeout_s:g} s")) from None
        if "error" in reply:
            raise NotJudged(self._described(first, reply["error"]))
        values = reply["values"]
        if not isinstance(values, list):
            raise NotJudged(
                self._described(first, f"must return a list of {len(completions)} numbers, got {values}")
            )
        if len(values) != len(completions):
            raise NotJudged(
                self._described(first, f"returned {len(values)} values for {len(completions)} completions")
            )
        return values

    def _score(self, completion: Completion, value: Any) -> Score:
        components: dict[str, float] = {}
        if isinstance(value, dict) and "table" in value:
            table = value["table"]
            name = next((name for name in ("score", "reward", "total") if name in table), None)
            if name is None:
                raise NotJudged(
                    self._described(
                        completion,
                        f"returned a table without 'score', the number that is the reward: {table!r:.200}",
                    )
                )
            components = {key: float(one) for key, one in table.items() if key != name and _is_number(one)}
            value = table[name]
        if value is None and self.may_skip:
            return Score(math.nan, {})
        if not _is_number(value):
            shown = value.get("no number", value) if isinstance(value, dict) else value
            raise NotJudged(self._described(completion, f"returned {shown}, which is no number"))
        if not -MAX_REWARD <= value <= MAX_REWARD:
            raise NotJudged(
                self._described(completion, f"returned {value}; a reward is a number up to ±{MAX_REWARD:g}")
            )
        return Score(float(value), {self.name: float(value), **components})

    def _described(self, completion: Completion, what: str) -> str:
        return f"reward {self.path}, {describe_row(completion.row)}: {what}"


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _item(completion: Completion) -> dict[str, Any]:
    return {
        "prompt": completion.prompt,
        "text": completion.text,
        "reasoning": completion.reasoning,
        "row": dict(completion.row),
    }


def _jsonable(value: Any) -> Any:
    """Return what stands for a value that JSON lacks: numbers of NumPy as numbers, dates as text, bytes in base64."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__}")
