"""Transcripts of solved tasks that a group's episodes are shown, and how a lease carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncrl.errors import InputError
from asyncrl.types import Lease

EXAMPLES = "examples"


def examples_extra(examples: Sequence[str]) -> dict[str, Any]:
    """Return the extra that shows a group's episodes transcripts of solved tasks; {} without any."""
    return {EXAMPLES: list(examples)} if examples else {}


def examples_of(lease: Lease) -> tuple[str, ...]:
    """Return the transcripts that the episodes of a lease are shown. Raises `InputError`."""
    raw = lease.extras.get(EXAMPLES, [])
    if type(raw) is not list or not all(isinstance(item, str) for item in raw):
        raise InputError(f"lease.extras.{EXAMPLES} must be a list of texts")
    return tuple(raw)
