"""What a lease may carry besides its own fields: written by hooks of the ledger, read by strategies of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from asyncrl.data.fields import Fields
from asyncrl.errors import InputError
from asyncrl.types import NEWEST, Lease, Opponent

EXAMPLES = "examples"
OPPONENT = "opponent"


def examples_extra(examples: Sequence[str]) -> dict[str, Any]:
    """Return the extra that shows a group's episodes transcripts of solved tasks; {} without any."""
    return {EXAMPLES: list(examples)} if examples else {}


def examples_of(lease: Lease) -> tuple[str, ...]:
    """Return the transcripts that the episodes of a lease are shown. Raises `InputError`."""
    raw = lease.extras.get(EXAMPLES, [])
    if type(raw) is not list or not all(isinstance(item, str) for item in raw):
        raise InputError(f"lease.extras.{EXAMPLES} must be a list of texts")
    return tuple(raw)


def opponent_extra(opponent: Opponent | None) -> dict[str, Any]:
    """Return the extra that says who plays the other side of a group's episodes; {} where the policy does."""
    if opponent is None:
        return {}
    return {OPPONENT: {name: value for name, value in asdict(opponent).items() if value is not None}}


def opponent_of(lease: Lease) -> Opponent | None:
    """Return who plays the other side of a lease's episodes; None where the policy does. Raises `InputError`."""
    if OPPONENT not in lease.extras:
        return None
    fields = Fields(lease.extras[OPPONENT], f"lease.extras.{OPPONENT}")
    opponent = Opponent(
        version=fields.integer("version", low=NEWEST),
        main=fields.take("main", bool),
        policy=fields.text("policy"),
        against=fields.integer("against", low=0) if fields.has("against") else None,
    )
    fields.close()
    return opponent
