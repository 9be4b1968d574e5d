"""Judges a final answer by the way that all math has; see docs/rewards.md."""

from __future__ import annotations

from asyncrl.extensions.answer_rewards.extraction import extract as find_answer
from asyncrl.extensions.answer_rewards.grader import GRADERS as GRADERS

GRADER = GRADERS


def extract(content: str) -> str:
    """Return the final answer of a turn; empty where there is none."""
    return find_answer(content) or ""
