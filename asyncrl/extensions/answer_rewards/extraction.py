r"""Finds the final answer in what a policy wrote. Every function takes time in proportion to the text.

The first of these forms that is there counts, and of several the last: `\boxed{...}` (boxes with nothing but commas,
"and" or "or" between them are one answer), `<answer>...</answer>`, `#### 42`, "the answer is ...", `**42**` in the last
line, the last line if it is nothing but an answer, the last formula or number of the last line that has one. Nothing is
taken from inside reasoning, quoted boxes and empty ones are none.
"""

from __future__ import annotations

import collections
import re

from asyncrl.extensions.answer_rewards.normalisation import without_pictures, without_remarks
from asyncrl.extensions.answer_rewards.quantities import read_quantity
from asyncrl.rewards.reasoning import after_reasoning

ANSWER_CHARACTERS = 2000
"""The most characters of one answer; a longer one is cut."""
SEARCHED_CHARACTERS = 20_000
"""At the end of a completion, where "the answer is" is looked for."""
SPAN_CHARACTERS = 400
"""The most characters of the text after "the answer is"."""

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,8}(\{|(?=[^\s{}$\\]))|\\[{}\\]|[{}]")
_BARE = re.compile(r"[^\s${}\\]{1,200}")
_BETWEEN = re.compile(
    r"(?:[\s$,;&=~]|\\q?quad|\\[,;:! ()\[\]]|\\\\|\\?\band\b|\bor\b|\\text\s?\{\s{0,4}(?:and|or|,)\s{0,4}\}|"
    r"(?<![A-Za-z])[A-Za-z](?:_\w)? ?=){0,60}"
)
_PLACEHOLDER = {
    *("", "...", "…", r"\ldots", r"\dots", r"\cdots", r"\cdot", "?", "number", "result"),
    *("answer", "your answer", "final answer", "your final answer", "the answer"),
    *(r"\text{answer}", r"\text{your answer}"),
}
_MARK = re.compile(
    r"(?:\b(?:answers?|(?:correct|right) (?:option|choice))\b(?: (?:to|for|of) [^.\n:=]{0,100}?)?[ *_]{0,4}"
    r"(?:,? ?\b(?:is|are|was|were|would be|will be|should be|must be|equals?|comes to)\b"
    r"(?: \b(?:therefore|thus|then|indeed|simply))?|:|=|：|\n)"
    r"|\bI (?:choose|pick|select)\b(?: (?:option|choice|answer)\b)?"
    r"|(?:答案|正解|答え)(?:应该是|应为|是|为|は|：|:|=))[ *_:：]{0,6}",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_FORMULA = re.compile(r"\$\$?([^$\n]{1,400})\$\$?|\\\(([^\n]{1,400}?)\\\)|\\\[([^\n]{1,400}?)\\\]")
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])(?:negative )?[-+−–]?[$€£]?(?:\d[\d,]{0,60}(?:\.\d{1,40})?|\.\d{1,40})"
    r"(?:/\d{1,30}|(?::\d{1,20}){1,6}(?: ?[ap]\.?m\b\.?)?)?(?:e[-+]?\d{1,4})?"
    r"(?: (?:hundred|thousand|million|billion|trillion|dozen)\b)?%?",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<!\\)\b(?:[A-Za-z]{3,}|so|is)\b")
_FORMULA_WORDS = ("and", "sqrt", "sin", "cos", "tan", "log", "exp")
_ENUMERATED = re.compile(
    r"^(?:[1-9]\d?[.)]|\([1-9]\d?\)|\(?(?:[a-h]|i{1,3}|iv|vi{0,3}|ix|x)[.)]|[QA]\d{1,3}[.):]|Q:)\s+"
    r"(?=\$?[-+−]?\$?[\d\\])(?!.*\$\$)"
)
"""The number of a line in a list, before a value. It is cut off wherever it stands, so no text has two readings."""
NAME_WORDS = 3
"""Words of a name that a sentence without a number may end with."""
_BULLET = re.compile(r"^[-+*•–]\s+(?=\S)")
_CALCULATIONS = re.compile(r"(?<=\d)(?:[.;,]|,? (?:so|then|and))\s+(?=[$(]?-?\d[^=\n]{0,100}=)")
"""Between calculations in one line: "16 - 3 = 13. 13 * 2 = 26", of which the last says the answer."""
_NEXT_QUESTION = re.compile(
    r"\n\s{0,8}(?:(?:#{1,4} |\*\*)?(?:Question|Problem|Exercise)(?: \d{1,4})?\s?:|Q:|(?:Human|User|Instruction)\s?:|"
    r"### (?:Instruction|Human|User))",
    re.IGNORECASE,
)
"""Where a model without a stop token goes on with a question of its own."""
_HEADING = re.compile(r"\d+[.)]\s+\S")
_CUT = re.compile(
    r"(?:[.!?](?=\s+[A-Z*#(]|\s*$)|"
    r",? (?:because|since|which|so that|as|where|not|rather than)\b|[.,] (?=\*\*)).*",
    re.DOTALL,
)
_LEAD = re.compile(
    r"^(?:[\s*_:=]|(?:[-=]>|→|⇒|➜)|"
    r"(?:therefore|thus|hence|so|about|approximately|exactly|equal to|simply|that|this is|that is|it is|"
    r"(?:it|that)['’]s|i\.e\.)(?![A-Za-z])[ ,]?){1,12}",
    re.IGNORECASE,
)


def extract(text: str) -> str | None:
    """Return the final answer of a completion, or None if it has none."""
    text = after_reasoning(text).strip()
    if not text:
        return None
    text = _own(text)
    for rule in (boxed, _tagged, _hashed, _marked, _plain):
        if (found := rule(text)) is not None and found.strip():
            return found.strip()[:ANSWER_CHARACTERS]
    return None


def _own(text: str) -> str:
    """Return a completion up to where the model asks itself another question, if it has answered the first."""
    if (following := _NEXT_QUESTION.search(text)) is None:
        return text
    before = text[: following.start()]
    answers = (
        "####" in before
        or r"\boxed" in before
        or "<answer>" in before
        or _MARK.search(before[-SEARCHED_CHARACTERS:])
    )
    return before if answers else text


def boxed(text: str) -> str | None:
    r"""Return what the last box holds, joined by commas with the boxes right before it; None without a box.

    `\boxed{...}`, `\fbox{...}` and `\boxed 5`. A box that is not closed, is empty, or is quoted, is none.
    """
    boxes = [box for box in _boxes(text) if not _is_quoted(text, *box)]
    if not boxes:
        return None
    last = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if len(last) > 50 or _BETWEEN.fullmatch(text[box[1] : last[-1][0]][:200]) is None:
            break
        last.append(box)
    contents = dict.fromkeys(text[box[2] : box[3]].strip() for box in reversed(last))
    return ", ".join(contents)


def _boxes(text: str) -> list[tuple[int, int, int, int]]:
    """Return the outermost boxes: where each starts and ends, and where its content does."""
    found: list[tuple[int, int, int, int]] = []
    if r"\boxed" not in text and r"\fbox" not in text and r"\framebox" not in text:
        return found
    opened: list[tuple[int, int]] = []
    for token in _BOX.finditer(text):
        word = token[0]
        if word.startswith(("\\boxed", "\\fbox", "\\framebox")):
            if word.endswith("{"):
                opened.append((token.start(), token.end()))
            elif (bare := _BARE.match(text, token.end())) is not None:
                end = token.end() + len(bare[0].rstrip(".,;:!?)"))
                found.append((token.start(), end, token.end(), end))
        elif word == "{":
            opened.append((-1, token.end()))
        elif word == "}" and opened:
            start, inner = opened.pop()
            if start >= 0:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, token.end(), inner, token.start()))
    return found


def _is_quoted(text: str, start: int, end: int, inner: int, inner_end: int) -> bool:
    content = text[inner:inner_end].strip().strip(".") if inner_end - inner < 40 else ""
    if inner_end - inner < 40 and (content.casefold() in _PLACEHOLDER or not content):
        return True
    before, after = text[max(0, start - 2) : start].rstrip("$"), text[end : end + 2].lstrip("$")
    return (
        bool(before)
        and bool(after)
        and (before[-1], after[0]) in {("`", "`"), ('"', '"'), ("“", "”"), ("'", "'")}
    )


def _tagged(text: str) -> str | None:
    start = text.rfind("<answer>")
    if start < 0:
        return None
    inner = text[start + len("<answer>") :].partition("</answer>")[0].strip()
    return (_marked(inner) or _plain(inner)) if inner else None


def _hashed(text: str) -> str | None:
    """Return what stands after the last `####`, unless it is a heading."""
    start = text.rfind("####")
    if start < 0:
        return None
    line = text[start + 4 : start + 4 + SPAN_CHARACTERS].partition("\n")[0].strip(" *#")
    is_last = "\n" not in text[start:].strip()
    if not line or _HEADING.match(line) or line.endswith(":"):
        return None
    if read_quantity(line) is not None or (is_last and _MARK.match(line) is None):
        return line
    return None


def _marked(text: str) -> str | None:
    """Return what follows the last "the answer is"."""
    text = text[-SEARCHED_CHARACTERS:]
    last = _last(_MARK, text)
    if last is None:
        return None
    rest = text[last.end() : last.end() + SPAN_CHARACTERS]
    span = rest.lstrip("\n\r *:=").partition("\n")[0]
    is_below = "\n" in (last[0] + rest[: len(rest) - len(rest.lstrip())])
    return _value_of(_BULLET.sub("", span) if is_below else span)


def _value_of(span: str) -> str | None:
    """Return the value at the start of what follows a mark."""
    span = _ENUMERATED.sub("", _LEAD.sub("", without_remarks(span)).replace("**", "").strip(" *_`"))
    cut = _last_calculation(_CUT.sub("", span).strip(" .,;:*_`"))
    if not cut:
        return None
    if _is_value(cut):
        return cut
    # A sentence around the value: its formula, else its last number.
    return _last_in(cut) or cut


def _plain(text: str) -> str | None:
    lines = [line for line in text[-4000:].splitlines() if line.strip(" *_-#=`")]
    if not lines:
        return None
    last = without_pictures(without_remarks(lines[-1])).strip()
    for bold in reversed(_BOLD.findall(last)):
        if _is_value(bold.strip(" .:")):
            return str(bold).strip(" .:")
    if sum(_BULLET.match(line.strip()) is not None for line in lines) > 1:
        last = _BULLET.sub("", last)
    whole = _last_calculation(_ENUMERATED.sub("", _LEAD.sub("", last)).strip(" .!*_`"))
    if _is_value(whole):
        return whole
    for line in reversed(lines):
        if (found := _last_in(without_remarks(line))) is not None:
            return found
    candidate = last.strip(" .*_`")
    # "The winner is John": a name at the end of a sentence.
    named = candidate.rpartition(" is ")[2].strip(" *_`")
    return named if 0 < len(named.split()) <= NAME_WORDS else candidate


def _last_calculation(text: str) -> str:
    return text[place.end() :] if (place := _last(_CALCULATIONS, text)) is not None else text


def _is_value(text: str) -> bool:
    """Whether a text is an answer as it stands: a quantity, a formula, a list of them, or one or two words."""
    if read_quantity(text) is not None:
        return True
    words = [word for word in _WORD.findall(text) if word.lower() not in _FORMULA_WORDS]
    return len(words) <= (2 if len(text) < 40 and not re.search(r"\d", text) else 0)


def _last_in(line: str) -> str | None:
    """Return the last formula of a line, else its last number."""
    formula = _last(_FORMULA, line)
    if formula is not None:
        return next(group for group in formula.groups() if group is not None).strip()
    number = _last(_NUMBER, line)
    return number[0].strip() if number is not None else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = collections.deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None
