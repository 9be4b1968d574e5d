"""The reward "math": 1 where the final answer equals the row's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.extensions.answer_rewards.equality import never_right
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.gold import golds
from asyncrl.extensions.answer_rewards.grader import GRADERS
from asyncrl.rewards.protocol import Completion, NotJudged, Score
from asyncrl.rewards.rows import describe_row


class MathReward:
    """1 where the final answer equals the row's, else 0; see docs/rewards.md."""

    name = "math"

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        return list(await asyncio.gather(*(self._score(one) for one in completions)))

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`."""
        try:
            found = golds(row)
        except KeyError as error:
            return str(error.args[0])
        reasons = [never_right(gold) for gold in found]
        return (
            reasons[0]
            if reasons and None not in reasons
            else None
            if reasons
            else "the answer is an empty list"
        )

    async def _score(self, completion: Completion) -> Score:
        try:
            right = golds(completion.row)
        except KeyError as error:
            raise NotJudged(
                f"reward {self.name!r}, {describe_row(completion.row)}: {error.args[0]}"
            ) from None
        given = extract(completion.text)
        success = False
        for gold in right if given is not None else ():
            success = success or await GRADERS.judge(gold, given or "")
        return Score(float(success), {self.name: float(success)}, given, success)
