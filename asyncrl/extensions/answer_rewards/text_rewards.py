"""The rewards "exact", "choice" and "regex:PATTERN", which compare text."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import regex

from asyncrl.extensions.answer_rewards.equality import chosen
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.normalisation import canonical
from asyncrl.rewards.protocol import Completion, NotJudged, Score
from asyncrl.rewards.published import published_answer, published_answers
from asyncrl.rewards.reasoning import after_reasoning
from asyncrl.rewards.rows import describe_row
from asyncrl.rows.question import chosen_label, labelled_choices

PATTERN_TIMEOUT_S = 2.0
"""The time limit of one search."""
_CHOICE_SAID = re.compile(
    r"(?<![A-Za-z])\(([A-Z])\)|(?<![A-Za-z])(?!A (?!or\b|and\b)[a-z])([A-HJ-Z])(?:[).:]|(?![A-Za-z']))"
)


class _TextReward:
    """1 or 0 for each completion, by itself."""

    name = ""

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        return [self._score(one) for one in completions]

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`."""
        try:
            return None if self._right(row) else "the answer is empty"
        except (KeyError, ValueError) as error:
            return str(error.args[0])

    def _right(self, row: Mapping[str, Any]) -> list[str]:
        raise NotImplementedError

    def _given(self, text: str) -> str | None:
        raise NotImplementedError

    def _score(self, completion: Completion) -> Score:
        try:
            right = self._right(completion.row)
        except (KeyError, ValueError) as error:
            raise NotJudged(
                f"reward {self.name!r}, {describe_row(completion.row)}: {error.args[0]}"
            ) from None
        given = self._given(completion.text)
        success = given is not None and given in right
        return Score(float(success), {self.name: float(success)}, given, success)


class Exact(_TextReward):
    """1 where the whole answer is the row's, but for blanks; of `<answer>...</answer>` what stands inside."""

    name = "exact"

    def _right(self, row: Mapping[str, Any]) -> list[str]:
        return [_blanks(str(one)) for one in published_answers(row) if str(one).strip()]

    def _given(self, text: str) -> str | None:
        answer = after_reasoning(text)
        start = answer.rfind("<answer>")
        if start >= 0:
            answer = answer[start + len("<answer>") :].partition("</answer>")[0]
        return _blanks(answer) or None


class Choice(_TextReward):
    """1 where the answer names the letter of the row's choice; the row has the letter, its number, or its text."""

    name = "choice"

    def _right(self, row: Mapping[str, Any]) -> list[str]:
        try:
            options = labelled_choices(row)
            found = chosen_label(row, published_answer(row))
        except TypeError as error:
            raise ValueError(str(error)) from None
        names, texts = [label for label, _ in options] or list(ascii_uppercase), [text for _, text in options]
        if not options and isinstance(found, int) and not isinstance(found, bool):
            if not 0 <= found < len(names):
                raise ValueError(f"the answer is choice {found} of {len(names)}, counted from 0")
            return [names[found]]
        if str(found) in texts and str(found).upper() not in map(str.upper, names):
            return [names[texts.index(str(found))].upper()]
        letter = chosen(canonical(str(found)))
        if not letter:
            raise ValueError(f"the answer {found!r:.80} is no letter, number or text of a choice")
        return [letter]

    def _given(self, text: str) -> str | None:
        answer = extract(text)
        if answer is None:
            return None
        if letter := chosen(canonical(answer)):
            return letter
        last = after_reasoning(text).strip().rpartition("\n")[2][-400:]
        found = [one or other for one, other in _CHOICE_SAID.findall(last)]
        # "A" alone in a sentence may be the article.
        return found[-1] if len(set(found)) == 1 else None


class Pattern:
    """1 where the pattern is found after the reasoning; where it has a group, and that is the row's answer."""

    def __init__(self, pattern: str) -> None:
        self.name = "regex"
        try:
            self.pattern = regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        return [self._score(one) for one in completions]

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`."""
        try:
            return None if not self.pattern.groups or self._right(row) else "the answer is empty"
        except KeyError as error:
            return str(error.args[0])

    def _score(self, completion: Completion) -> Score:
        try:
            answer = after_reasoning(completion.text)
            found = collections.deque(self.pattern.finditer(answer, timeout=PATTERN_TIMEOUT_S), maxlen=1)
            right = self._right(completion.row) if self.pattern.groups else []
        except TimeoutError:
            raise NotJudged(
                f"reward regex:{self.pattern.pattern}, {describe_row(completion.row)}: the search took longer than "
                f"{PATTERN_TIMEOUT_S:g} s"
            ) from None
        except KeyError as error:
            raise NotJudged(f"reward 'regex', {describe_row(completion.row)}: {error.args[0]}") from None
        given = next((one for one in found[0].groups() if one is not None), found[0][0]) if found else None
        success = given is not None and (not self.pattern.groups or given.strip() in right)
        return Score(float(success), {self.name: float(success)}, given, success)

    def _right(self, row: Mapping[str, Any]) -> list[str]:
        return [str(one).strip() for one in published_answers(row) if str(one).strip()]


def _blanks(text: str) -> str:
    return " ".join(text.split())
