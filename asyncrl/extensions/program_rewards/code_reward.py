"""The reward "code": 1 where the program of an answer passes all tests of its row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.extensions.program_rewards.published import judge_program, program_of, program_tests
from asyncrl.rewards.protocol import Completion, NotJudged, Score
from asyncrl.rewards.rows import describe_row

TIME_LIMIT_S = 10.0
"""For each test, or for all of a `check`."""


class CodeReward:
    """1 where all tests pass, else 0. Component `tests`: the share that does. See docs/rewards.md."""

    name = "code"

    def __init__(self, time_limit_s: float = TIME_LIMIT_S, sandbox: str = "auto") -> None:
        self.time_limit_s, self.sandbox = time_limit_s, sandbox

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        return list(await asyncio.gather(*(self._score(one) for one in completions)))

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`."""
        try:
            program_tests(row)
        except (ValueError, KeyError, TypeError) as error:
            return f"{error.args[0] if error.args else error}"
        return None

    async def _score(self, completion: Completion) -> Score:
        if (why := self.check_row(completion.row)) is not None:
            raise NotJudged(f"reward {self.name!r}, {describe_row(completion.row)}: {why}")
        tests = program_tests(completion.row)
        verdict, count = await judge_program(
            completion.text, tests, time_limit_s=self.time_limit_s, sandbox=self.sandbox
        )
        share = sum(verdict.passed) / count
        success = share == 1.0
        return Score(
            float(success),
            {self.name: float(success), "tests": share},
            program_of(completion.text, tests),
            success,
        )
