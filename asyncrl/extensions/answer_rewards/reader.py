"""What reads answers for those who compare them with no right one: votes, and functions of the user's own."""

from __future__ import annotations

from collections.abc import Hashable

from asyncrl.extensions.answer_rewards.ballot import ballot
from asyncrl.extensions.answer_rewards.extraction import extract


class AnswerReader:
    """Implements `final_answers.FinalAnswers`."""

    def extract(self, text: str) -> str | None:
        """See `FinalAnswers`."""
        return extract(text)

    def ballot(self, extracted: str | None) -> Hashable | None:
        """See `FinalAnswers`."""
        return ballot(extracted)
