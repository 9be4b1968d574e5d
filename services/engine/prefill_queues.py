"""Which prompts are computed by an engine that prefills, and when: decisions only, no input or output.

The two queues of LAPS (She and others, "LAPS: A Length-Aware-Prefill LLM Serving System", MLSys 2026, arXiv
2601.11589): long prefills are bound by arithmetic, short ones and those of a conversation's later turns by memory, and
a batch of both is as slow as its longest. So batches are of one kind, in turn on one engine (temporal disaggregation).
Short prompts wait up to a window for others, until so many are there that the batch is deep enough; window and depth
follow what earlier batches found (adaptive wait-depth). The paper's shapes of CUDA graphs are vLLM's own affair, and
how window and depth follow is a rule of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

LONG_TOKENS = 256
"""Tokens to compute from which a prompt is long: in the paper's traces 81 % of later turns have fewer."""
MAX_DEPTH = 64
SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 0.001, 0.008
LONG_WAIT_S = 0.5
"""A long prompt that has waited for this time is not overtaken by short ones any more."""


class Kind(StrEnum):
    """Where a prompt is computed."""

    NONE = "none"
    """By the engine that decodes it."""
    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Depth:
    """What batches of short prompts wait for."""

    window_s: float = LONGEST_WINDOW_S
    depth: int = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What an idle engine does next."""

    kind: Kind
    """NONE: it waits."""
    count: int = 0
    """Prompts of the batch, from the head of their queue."""
    wait_s: float = 0.0
    """How long it waits, unless another prompt comes; 0 with both queues empty: until one comes."""


def kind_of(num_tokens: int, cached_tokens: int, least: int) -> Kind:
    """Return where a prompt is computed.

    num_tokens: of the prompt. cached_tokens: what the engine that decodes should find in its prefix cache, as of a
    conversation's earlier turns. least: tokens to compute below which a transfer costs more than it saves.
    """
    tokens = num_tokens - cached_tokens
    if tokens < max(1, least):
        return Kind.NONE
    return Kind.LONG if tokens >= LONG_TOKENS else Kind.SHORT


def next_step(short: Sequence[float], long: Sequence[float], now: float, wanted: Depth) -> Step:
    """Return what an idle engine does. short, long: when the prompts of each queue came, oldest first; in seconds on
    the clock of `now`."""
    waited = now - short[0] if short else 0.0
    due = bool(short) and (len(short) >= wanted.depth or waited >= wanted.window_s)
    overdue = bool(long) and now - long[0] >= LONG_WAIT_S
    if due and not overdue:
        return Step(Kind.SHORT, min(len(short), MAX_DEPTH))
    if long:
        return Step(Kind.LONG, 1)
    return Step(Kind.NONE, wait_s=wanted.window_s - waited if short else 0.0)


def adapt(wanted: Depth, count: int) -> Depth:
    """Return what the next batch of short prompts waits for after one of `count`.

    One that was deep enough lets the next wait longer for one more prompt; one whose window ended in vain halves both.
    """
    if count >= wanted.depth:
        return Depth(min(LONGEST_WINDOW_S, 2 * wanted.window_s), min(MAX_DEPTH, count + 1))
    return Depth(max(SHORTEST_WINDOW_S, wanted.window_s / 2), max(1, (wanted.depth + count) // 2))
