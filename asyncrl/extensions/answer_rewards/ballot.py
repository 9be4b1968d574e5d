"""What answers are counted as where they are voted on, without a right one to compare them with."""

from __future__ import annotations

from collections.abc import Hashable

from asyncrl.extensions.answer_rewards.normalisation import canonical
from asyncrl.extensions.answer_rewards.quantities import read_canonical


def ballot(extracted: str | None) -> Hashable | None:
    """Return what an answer counts as: a number as its value, whatever unit stands beside it, others as their text.
    None for no answer."""
    text = canonical(extracted) if extracted else ""
    number = read_canonical(text) if text else None
    return (text or None) if number is None else number.value
