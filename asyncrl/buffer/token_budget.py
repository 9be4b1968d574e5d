"""Steps that end early by the number of their tokens (C3PO++, arXiv 2510.18855; `buffer.token_budget`)."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.buffer.staleness import Admitted, EarlyEnd


class TokenBudget(EarlyEnd):
    """A step is complete as soon as its groups have so many sampled tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def reached(self, groups: Sequence[Admitted]) -> int:
        """See `EarlyEnd`."""
        total = 0
        for count, group in enumerate(groups, 1):
            total += group.tokens
            if total >= self.tokens:
                return count
        return 0

    def may_be_reached(self, tokens: int) -> bool:
        """See `EarlyEnd`."""
        return tokens >= self.tokens
