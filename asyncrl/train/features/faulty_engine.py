"""Tells an engine that does not sample from the policy from a worker that sends numbers of its own. Pure.

An engine seems to be at fault where all numbers of another policy are of tokens that it sampled, and those of another
engine's tokens are the policy's. It may have sampled soundly before, in the same batch. A worker that makes its numbers
up may do so for one engine alone; the buffer, which knows whose groups these are, asks for a second witness.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.train.features.logprob_check import (
    MIN_TOKENS,
    Comparison,
    Tolerance,
    disagreeing,
    is_wrong,
    of_groups,
)


def faulty_engines(parts: Sequence[Comparison], tolerance: Tolerance) -> dict[str, list[str]]:
    """Return the engines that seem to be at fault for all groups whose numbers are not the policy's, each with the
    groups that show it; empty if the workers are at fault, or it cannot be told.

    parts: of each group and engine, as `compare` returns them.
    """
    suspects: dict[str, list[str]] = {}
    for part in parts:
        if is_wrong(part, tolerance):
            suspects.setdefault(part.engine, []).append(part.group)
    others = [part for part in parts if part.engine not in suspects]
    sound = any(part.engine and part.num_tokens >= MIN_TOKENS for part in others)
    unclear = "" in suspects or not sound or disagreeing(of_groups(others), tolerance)
    return {} if unclear else suspects
