"""Several rewards as one: the weighted sum of their scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.rewards.protocol import Completion, NotJudged, Reward, Score
from asyncrl.rewards.rows import describe_row


class Weighted:
    """`parts`: name, reward and weight of each; names are unique. The first that has a verdict says what is right."""

    def __init__(self, parts: Sequence[tuple[str, Reward, float]]) -> None:
        self.parts = list(parts)

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`. A reward that says nothing of an answer (None) is left out of its sum."""
        found = await asyncio.gather(*(reward.score(completions) for _, reward, _ in self.parts))
        return [self._sum(one, [scores[place] for scores in found]) for place, one in enumerate(completions)]

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`: the first reason of any part."""
        reasons = ((name, reward.check_row(row)) for name, reward, _ in self.parts)
        return next((f"{name}: {why}" for name, why in reasons if why is not None), None)

    def _sum(self, completion: Completion, scores: Sequence[Score]) -> Score:
        total, components, any_success = 0.0, {}, False
        for (name, reward, weight), score in zip(self.parts, scores, strict=True):
            components.update(
                {
                    f"{name}/{inner}": value
                    for inner, value in score.components.items()
                    # A reward's own name, which is another one here where two have the same.
                    if inner not in (name, getattr(reward, "name", name))
                }
            )
            if score.total != score.total:
                continue
            any_success = True
            total += weight * score.total
            components[name] = score.total
        if not any_success:
            raise NotJudged(
                f"no reward says anything of the answer to {describe_row(completion.row)}: all returned None"
            )
        success = next((score.success for score in scores if score.success is not None), None)
        extracted = next((score.extracted for score in scores if score.extracted is not None), None)
        return Score(total, components, extracted, success)
