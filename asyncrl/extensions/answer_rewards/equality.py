r"""Compares a final answer with the right one, as far as that needs no computer algebra.

`plan` reads both and returns True, False, or the comparisons of expressions that decide: an answer of several values
needs one each. What it reads is fixed by the answer alone, so no answer counts under two readings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from asyncrl.extensions.answer_rewards.extraction import boxed
from asyncrl.extensions.answer_rewards.forms import rewritten
from asyncrl.extensions.answer_rewards.normalisation import canonical
from asyncrl.extensions.answer_rewards.quantities import read_canonical, same_quantity, split_unit, unit_ratio

EXPRESSION_CHARACTERS = 1000
"""Longer answers are no expressions; they are right only as the same text."""
LIST_LENGTH = 64
DEPTH = 16
"""The greatest depth of brackets in brackets; deeper answers are right only as the same text."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Whether two expressions in LaTeX are equal, which computer algebra says."""

    gold: str
    answer: str
    is_close: bool = False
    """Ask whether two numbers agree to 1 percent instead."""


@dataclass(frozen=True, slots=True)
class Every:
    """All of them hold."""

    of: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of them holds."""

    of: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """Each row can be given a column of its own that holds: lists whose order does not count."""

    of: tuple[tuple[Plan, ...], ...]


Plan = bool | Ask | Every | Some | Matching

_CHOICE = re.compile(r"\(?([A-Z])\)?[.:]?")
_CHOSEN = re.compile(
    r"(?:(?:option|choice|answer)\s?:?\s?)?"
    r"(?:\(([A-Za-z])\)|([A-Za-z])\s?[).:]|([A-Za-z])(?=\s*$))(?!\w)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_NEXT_CHOICE = re.compile(r"(?:^|[\s,;(])[A-J]\s?[).](?:\s|,|$)|\([A-J]\)")
_EITHER_SIGN = re.compile(r"\\pm(?![A-Za-z])")
_LETTERS = re.compile(r"[A-Za-z]+")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|angle|triangle|Delta|Omega)(?![A-Za-z])"
)
_MEMBER = re.compile(r"[A-Za-z]\s?\\in\s?(?=[\[(])")
_OF_SET = re.compile(r"[A-Za-z]\s?\\in\s?(?=\\\{)")
_COMMAND = re.compile(r"\\(?:begin|end)\s?\{\w{1,20}\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?![A-Za-z])")
_FUNCTIONS = {
    *(
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "sinh",
        "cosh",
        "tanh",
        "arcsin",
        "arccos",
        "arctan",
        "log",
        "ln",
        "lg",
    ),
    *(
        "exp",
        "sqrt",
        "pi",
        "min",
        "max",
        "mod",
        "gcd",
        "lcm",
        "inf",
        "infty",
        "oo",
        "det",
        "lim",
        "dx",
        "dy",
        "dt",
    ),
    *("deg", "abs", "floor", "ceil", "frac", "cdot", "times"),
}
_BASE = re.compile(r"([0-9A-F]{1,200})\s?_\s?\{?\s?(\d{1,3})\s?\}?")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?\s?(?:[ap]\.?\s?m\.?)?", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s?(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_RATIO = re.compile(r"\d{1,50}(?:\.\d{1,20})?(?:\s?:\s?\d{1,50}(?:\.\d{1,20})?){1,7}")
_LABELLED = re.compile(r"\(?([A-J])\s?(?:\)[.:]?\s{0,3}|[.:]\s+)(?=\S)(.{1,400})", re.DOTALL)
_OTHER_GROUPS = re.compile(
    r"([-+]?)(?:(\d{1,2}(?:,\d{2}){1,8},\d{3}(?:\.\d+)?)|"
    r"(\d{1,3}(?:\.\d{3}){2,8})(,\d+)?|(\d{1,3}\.\d{3}),(\d+))"
)
"""Digits grouped as in India ("12,34,567") or on the continent ("1.234.567,8"), where that can be nothing else."""
_SYMBOL = re.compile(
    r"\\?[A-Za-z]+(?:\s?_\s?(?:\{[^{}]{0,20}\}|\w))?'{0,3}(?:\s?\(\s?[^()=]{0,40}\s?\))?|[A-Za-z][A-Za-z ]{0,60}|"
    r"(?:\\[A-Za-z]+\s?|[A-Z]){1,6}|\|[A-Z]{1,4}\||[A-Za-z]\s?\^\s?\{?\s?-1\s?\}?\s?\([^()=]{0,40}\)"
)
_EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|cong|doteq)(?![A-Za-z])|~=|≈")
_RELATION = re.compile(r"[<>]|\\(?:l|g)(?:e|eq|t|eqslant)?(?![A-Za-z])|\\n(?:e|eq)(?![A-Za-z])")
_SOLVED = re.compile(
    r"(?:([^<>=,]{1,60}?)\s?(<|\\l(?:e|eq|t)(?![A-Za-z]))\s?)?([A-Za-z])\s?"
    r"(<|>|\\[lg](?:e|eq|t)(?![A-Za-z]))\s?([^<>=,]{1,60})"
)
_VARIABLES = re.compile(r"(?<![A-Za-z])(?!e\b|i\b)[A-Za-z]")
_LEADING_AND = re.compile(r"^\s*(?:and|or)\s+")
_DOTS = re.compile(r"\\(?:l|c|v)?dots(?![A-Za-z])|…|\.\.\.")
_AND = re.compile(r"\s+(?:and|or)\s+")
_GUESSES = re.compile(
    r"\d\s?[)\]]?(?:\s?[?!|]+\s?|\.\s+|\s?(?:[-=]>|→|⇒|\\(?:to|implies|(?:long)?(?:r|R)ightarrow)(?![A-Za-z]))\s?)"
    r"[-+]?\s?\d"
)
"""Two numbers with nothing between them that would make one value of them: "142? 137", "142 -> 137"."""
_TOKENS = re.compile(r"[^\W_]+(?:[.:/][^\W_]+)*|[^\w\s.,;:!?'\"$(){}\[\]]|_\w+", re.UNICODE)


def plan(gold: str, answer: str) -> Plan:
    """Return whether the answer is the right one, or what computer algebra must be asked to know."""
    if max(len(gold), len(answer)) > 4 * EXPRESSION_CHARACTERS:
        return gold.strip() == answer.strip()
    # "x \\in (0, 1)" says the interval.
    left, right = (_MEMBER.sub("", canonical(text), count=1) for text in (gold, answer))
    if _OF_SET.match(left):
        # Only then does an answer of this form say more than that x is one of several guesses.
        left, right = _OF_SET.sub("", left, count=1), _OF_SET.sub("", right, count=1)
    left, right = rewritten(left), rewritten(right)
    if not left or not right:
        return False
    if any(len(text) > EXPRESSION_CHARACTERS or _depth(text) > DEPTH for text in (left, right)):
        return left == right
    found = _same(left, right)
    settled = None if needed(found) else settle(found, {})
    return found if settled is None else settled


def is_number(number: int, answer: str | None) -> bool:
    """Return True if an answer is this whole number, or a calculation that ends in it ("2 + 3 = 5").

    Stricter than `plan`, for environments that ask for a whole number: in ASCII digits, without a decimal point.
    """
    if answer is None or len(answer) > EXPRESSION_CHARACTERS:
        return False
    if any(character.isdecimal() and not character.isascii() for character in answer):
        return False
    given = read_canonical(canonical(_sides(canonical(answer))[-1]))
    return given is not None and not given.is_decimal and given.value == number


def never_right(gold: str) -> str | None:
    """Return why no answer can be right where this is the right one, or None. The gold is judged against itself."""
    if (why := unreadable(gold)) is not None:
        return why
    given = boxed(rf"\boxed{{{gold}}}")
    if given is None or plan(gold, given) is False:
        return f"the answer {gold[:80]!r} is not equal to itself in a box"
    return None


def unreadable(gold: str) -> str | None:
    """Return why no answer can be right where this is the right one, as far as that is seen without parsing it."""
    text = canonical(gold[: 4 * EXPRESSION_CHARACTERS])
    if not text:
        return "the answer is empty"
    if text.casefold() in ("nan", "null", "none", "n/a"):
        return f"the answer is {text!r}"
    if len(text) > EXPRESSION_CHARACTERS:
        return f"the answer has {len(text)} characters, more than {EXPRESSION_CHARACTERS}: only the same text is right"
    return None


def _depth(text: str) -> int:
    depth = most = 0
    for character in text:
        depth += 1 if character in "([{" else -1 if character in ")]}" else 0
        most = max(most, depth)
    return most


def is_words(text: str) -> bool:
    """Whether an answer is words, which are compared as text, rather than a formula."""
    if len(_sides(text)) > 1:
        return False
    words = [word for word in _WORD.findall(_COMMAND.sub(" ", text)) if word not in _FUNCTIONS]
    if not words:
        return False
    # In a formula letters stand beside digits and signs: "2ab", "xy + 1".
    return not re.search(r"[\^+*=<>|\\]|\d[A-Za-z]|[A-Za-z]\(|\w/|-\s?\w|_", text) or any(
        len(w) > 3 for w in words
    )


def _same(gold: str, answer: str) -> Plan:
    if (choice := _CHOICE.fullmatch(gold)) and choice[1] in "ABCDEFGHIJ":
        return chosen(answer) == choice[1] or gold == answer
    if gold == answer:
        return True
    if (option := _LABELLED.fullmatch(gold)) and _is_option(option):
        # The gold is an option with its letter; either says it.
        return True if chosen(answer) == option[1] else _same(option[2], answer)
    if (option := _LABELLED.fullmatch(answer)) and not _is_label(gold):
        # "B) 42" where the value is asked for.
        return _same(gold, option[2])
    for special in (_BASE, _CLOCK):
        if special.fullmatch(gold) or special.fullmatch(answer):
            return _tokens(gold) == _tokens(answer) or _same_time(gold, answer)
    number = read_canonical(gold)
    if number is not None:
        given = read_canonical(answer)
        given = given if given is not None else read_canonical(_regrouped(answer))
        if given is not None:
            return same_quantity(number, given)
    if _RATIO.fullmatch(gold) is not None:
        if _RATIO.fullmatch(answer):
            return _proportional(gold, answer)
        terms = _terms(gold)
        return len(terms) == 2 and terms[1] != 0 and terms[0] / terms[1] == _value(answer)
    if _has_equation(answer) or _has_equation(gold):
        return _same_equation(gold, answer)
    gold, answer = _as_interval(gold, answer), _as_interval(answer, gold)
    gold, answer = _as_union(gold, answer), _as_union(answer, gold)
    left, right = _list_of(gold), _list_of(answer)
    if _RELATION.search(gold) or _RELATION.search(answer):
        # "x > 5" and "(5, \\infty)".
        return _asked(gold, answer) if left is None or right is None else _same_list(left, right)
    if left is not None or right is not None:
        return _same_list(left or ("", [gold]), right or ("", [answer]))
    if _DOTS.search(gold) or _DOTS.search(answer):
        # Computer algebra leaves them out.
        return _tokens(gold) == _tokens(answer)
    (gold, unit), (answer, given_unit) = split_unit(gold), split_unit(answer)
    # "5m" is five times m, unless the other side says that m is a unit.
    gold, answer = _without(gold, given_unit), _without(answer, unit)
    if (number is None and is_words(gold)) or is_words(answer):
        return bool(_tokens(gold)) and _tokens(gold) == _tokens(answer)
    ratio_of_units = unit_ratio(unit, given_unit)
    if ratio_of_units is None:
        return False
    if ratio_of_units != 1:
        top, bottom = ratio_of_units.as_integer_ratio()
        answer = rf"\frac{{{top}}}{{{bottom}}} \cdot ({answer})"
    return _asked(gold, answer)


def _asked(gold: str, answer: str) -> Plan:
    """Return the question to computer algebra; False for an answer that is no single expression.

    It would read as much of such an answer as it can, such as the last of two guesses ("142) 137").
    """
    is_single = _is_closed(answer) and _GUESSES.search(answer) is None
    return Ask(gold, answer) if is_single else False


def _is_closed(text: str) -> bool:
    """Whether brackets fit: those of two kinds are an interval's, as in "[0, 1)" and "]0, 1["."""
    text = text.strip()
    if text[:1] == "]" and text[-1:] == "[":
        text = text[1:-1]
    opened: list[int] = []
    for place, character in enumerate(text):
        if character in "([":
            opened.append(place)
        elif character in ")]":
            if not opened:
                return False
            start = opened.pop()
            if text[start] + character in ("[)", "(]") and not re.search("[,;]", text[start:place]):
                return False
    return not opened


def _as_interval(text: str, other: str) -> str:
    r"""Return a solved inequality ("0 < x \\le 5", "x > 3") as an interval where the other side is one.

    One that is not solved stays as it is: it may be the question.
    """
    found = _SOLVED.fullmatch(text.strip())
    if found is None or other.strip()[:1] not in ("(", "[") or _list_of(other) is None:
        return text
    lower, first, _, second, upper = found.groups()
    if _VARIABLES.search(_COMMAND.sub(" ", f"{lower or ''} {upper}")):
        return text
    left, right = "[" if "e" in (first or "") else "(", "]" if "e" in second else ")"
    if second[0] == ">" or second.startswith(r"\g"):
        return text if lower else rf"{'[' if 'e' in second else '('}{upper}, \infty)"
    return rf"{left}{lower}, {upper}{right}" if lower else rf"(-\infty, {upper}{right}"


def _as_union(text: str, other: str) -> str:
    """Return "x < 1 or x > 3" as a union of intervals where the other side is one."""
    parts = re.split(r"\s+or\s+|\s?\\(?:lor|vee)(?![A-Za-z])\s?", text)
    if r"\cup" not in other or not 1 < len(parts) < 9:
        return text
    intervals = [_as_interval(part, "(0, 1)") for part in parts]
    is_solved = all(interval != part for interval, part in zip(intervals, parts, strict=True))
    return r" \cup ".join(intervals) if is_solved else text


def _without(formula: str, unit: str) -> str:
    shorter = formula.removesuffix(unit).rstrip() if unit else formula
    return shorter if shorter and (shorter[-1].isdigit() or shorter[-1] in ")}") else formula


def chosen(answer: str) -> str:
    """Return the letter of the choice that an answer names, in upper case; empty if it names none or several."""
    found = _CHOSEN.match(answer)
    if found is None:
        return ""
    if found[4] and _NEXT_CHOICE.search(found[4]):
        return ""
    return next(group for group in found.groups()[:3] if group).upper()


def _tokens(text: str) -> list[str]:
    """Return words, numbers and signs in order, without case, punctuation and leading articles."""
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text.casefold())
    found = [
        token.replace("{", "").replace("}", "")
        for token in _TOKENS.findall(re.sub(r"_\s?\{\s?(\w+)\s?\}", r"_\1", text))
    ]
    return found[1:] if len(found) > 1 and found[0] in ("the", "a", "an") else found


def _value(text: str) -> Fraction | None:
    number = read_canonical(text)
    return number.value if number is not None else None


def _terms(ratio: str) -> list[Fraction]:
    return [Fraction(term.strip()) for term in ratio.split(":")]


def _proportional(gold: str, answer: str) -> bool:
    left, right = _terms(gold), _terms(answer)
    if len(left) != len(right):
        return False
    return sum(left) * sum(right) != 0 and all(
        a * sum(right) == b * sum(left) for a, b in zip(left, right, strict=True)
    )


def _same_time(gold: str, answer: str) -> bool:
    """Whether two times of day are the same. Morning or afternoon is taken as meant where only one says it."""
    left, right = _TIME.fullmatch(gold), _TIME.fullmatch(answer)
    if left is None or right is None:
        return False
    times = [
        (int(found[1]), int(found[2] or 0), int(found[3] or 0), (found[4] or "").lower())
        for found in (left, right)
    ]
    (hour, *rest, half), (other, *others, other_half) = times
    if rest != others:
        return False
    if half and other_half:
        return (hour, half) == (other, other_half)
    if half or other_half:
        marked, bare, which = (hour, other, half) if half else (other, hour, other_half)
        return bare == marked or bare == marked % 12 + (12 if which == "p" else 0)
    return hour == other


def _regrouped(text: str) -> str:
    found = _OTHER_GROUPS.fullmatch(text)
    if found is None:
        return text
    sign, indian, dotted, decimals, short, tail = found.groups()
    if indian:
        return sign + indian.replace(",", "")
    return (
        sign
        + (dotted or short).replace(".", "")
        + (decimals or (f",{tail}" if tail else "")).replace(",", ".")
    )


def _is_label(gold: str) -> bool:
    found = _CHOICE.fullmatch(gold)
    return found is not None and found[1] in "ABCDEFGHIJ"


def _is_option(found: re.Match[str]) -> bool:
    """Whether a gold is a letter with the text of its option: "A) 5", "(C) Paris"; "C. elegans" is none."""
    return not found[2][0].islower() and _NEXT_CHOICE.search(found[2]) is None


def _has_equation(text: str) -> bool:
    return len(_sides(text)) > 1 or _APPROXIMATELY.search(text) is not None


def _sides(text: str) -> list[str]:
    """Return what stands between the "=" of a chain, outside brackets."""
    sides, start, depth, place = [], 0, 0, 0
    for found in _EQUALS.finditer(text):
        depth += sum(
            {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(one, 0)
            for one in text[place : found.start()]
        )
        place = found.start()
        if depth == 0:
            sides.append(text[start:place])
            start = found.end()
    return [*sides, text[start:]]


def _same_equation(gold: str, answer: str) -> Plan:
    """Compare where one of them has "=": a chain that ends in a value says the value, if all its values agree."""
    right = _list_of(answer)
    left = _list_of(gold)
    if left is not None and right is not None and len(left[1]) == len(right[1]):
        return _same_named(left, right)
    sides, given = _sides(gold), _sides(answer)
    if (left is None and right is not None) or (left is not None and len(given) == 1):
        return False
    if len(sides) == 1:
        return _same_chain(gold, answer)
    names = [side.strip() for side in sides[:-1]]
    value = sides[-1].strip()
    if len(sides) == 2 and _is_symbol(names[0]):
        # "x = 5" is the value of x, and so is "5"; "y = 5" is another's.
        if len(given) == 1:
            return _same(value, answer.strip())
        if len(given) == 2 and _is_symbol(given[0].strip()):
            same_name = re.sub(r"\s", "", names[0]) == re.sub(r"\s", "", given[0].strip())
            return _same(value, given[1].strip()) if same_name else False
    return _asked(gold, answer)


def _same_named(gold: tuple[str, list[str]], answer: tuple[str, list[str]]) -> Plan:
    """Compare two lists of which one names its members: "a = 1, b = 2" and "1, 2" say the same in this order alone."""
    named = [
        {re.sub(r"\s", "", _sides(one)[0]) for one in of if len(_sides(one)) > 1}
        for of in (gold[1], answer[1])
    ]
    differ = [len(names) == len(gold[1]) for names in named]
    if differ[0] != differ[1] and not named[differ[0]]:
        return Every(tuple(_same(one, other) for one, other in zip(gold[1], answer[1], strict=True)))
    return _same_list(gold, answer)


def _same_chain(gold: str, answer: str) -> Plan:
    """Compare a value with a chain: each side of the answer that is no name must be that value."""
    exact, *rounded = _APPROXIMATELY.split(answer)
    sides = [side.strip() for side in _sides(exact)]
    # "a + b = 2 + 3 = 5": what is named or has variables says how, the others are values.
    values = [side for side in sides[:-1] if side and not _is_name(side)] + [
        side for side in sides[-1:] if side
    ]
    if len(sides) == 1 and rounded and _is_name(sides[0]):
        # "x ≈ 0.33" names a value.
        values, rounded = [rounded[0].strip()], rounded[1:]
    if not values:
        return False
    agreed = Every(tuple(_same(gold, value) for value in values))
    if not rounded:
        return agreed
    last = rounded[-1].strip()
    # "1/3 ≈ 0.33" is one value said twice if both are near; then either form may be the right one.
    return Every((_near(values[-1], last), Some((agreed, _same(gold, last)))))


def _near(value: str, other: str) -> Plan:
    left, right = read_canonical(value), read_canonical(other)
    if left is not None and right is not None:
        return abs(left.value - right.value) <= Fraction(1, 100) * max(abs(left.value), abs(right.value))
    return Ask(split_unit(value)[0], split_unit(other)[0], is_close=True)


def _is_symbol(text: str) -> bool:
    return _SYMBOL.fullmatch(text) is not None and not read_canonical(text)


def _is_name(text: str) -> bool:
    """Whether a side of a chain names what is computed, or has variables: "x", "f(2)", "the total", "a + b"."""
    if _is_symbol(text) or is_words(text) or _GREEK.search(text):
        return True
    rest = _COMMAND.sub(" ", text)
    known = (_FUNCTIONS - {"dx", "dy", "dt"}) | {"e", "i"}
    return any(word not in known for word in _LETTERS.findall(rest))


def _list_of(text: str) -> tuple[str, list[str]] | None:
    """Return the brackets around a list ("()", "[)", "{}", "" for none) and its members; None if it is no list."""
    text = text.strip()
    inner, brackets = text, ""
    if text.startswith("\\{") and text.endswith("\\}"):
        inner, brackets = text[2:-2], "{}"
    elif text[:1] in ("(", "[") and text[-1:] in (")", "]") and _closes_at_end(text):
        inner, brackets = text[1:-1], text[0] + text[-1]
    if len(_EITHER_SIGN.findall(inner)) == 1 and not brackets and "," not in inner:
        return "", [_EITHER_SIGN.sub("+", inner).lstrip("+ "), _EITHER_SIGN.sub("-", inner)]
    members = _split(inner)
    if members is None or len(members) > LIST_LENGTH:
        return None
    if len(members) < 2:
        return (brackets, members) if brackets == "{}" and members and members[0] else None
    return brackets, members


def _closes_at_end(text: str) -> bool:
    depth = 0
    for place, character in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if depth == 0:
            return place == len(text) - 1
    return False


def _split(text: str) -> list[str] | None:
    """Split at commas, semicolons, "and" and "or" outside brackets; None where a part is empty or brackets differ."""
    parts, start, depth = [], 0, 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and character in ",;":
            parts.append(text[start:place])
            start = place + 1
        elif depth == 0 and character == " " and text[place - 1 : place] in tuple(")]}"):
            between = _AND.match(text, place)
            if between is not None:
                parts.append(text[start:place])
                start = between.end()
    if depth:
        return None
    parts.append(text[start:])
    parts = [_LEADING_AND.sub("", part) for part in parts]
    split = [
        piece for part in parts for piece in (_AND.split(part) if not re.search(r"[(\[{]", part) else [part])
    ]
    members = [part.strip() for part in split]
    if len(members) > 1 and not members[-1]:
        members.pop()
    return members if all(members) else None


def _same_list(gold: tuple[str, list[str]], answer: tuple[str, list[str]]) -> Plan:
    (around, left), (brackets, right) = gold, answer
    if len(left) != len(right):
        return False
    ordered = any(pair[:1] in ("(", "[") for pair in (around, brackets) if pair)
    if around and brackets and around != brackets:
        return False
    if ordered:
        if "[" in around + brackets and around != brackets:
            return False
        return Every(tuple(_same(one, other) for one, other in zip(left, right, strict=True)))
    if len(left) == 1:
        return _same(left[0], right[0])
    return Matching(tuple(tuple(_same(one, other) for other in right) for one in left))


def needed(of: Plan) -> Sequence[Ask]:
    """Return what computer algebra must be asked for a plan, each question once."""
    found: dict[Ask, None] = {}
    waiting: list[Plan] = [of]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Ask):
            found[one] = None
        elif isinstance(one, Every | Some):
            waiting += one.of
        elif isinstance(one, Matching):
            waiting += [plan for row in one.of for plan in row]
    return tuple(found)


def settle(of: Plan, known: dict[Ask, bool | None]) -> bool | None:
    """Return the outcome of a plan; None where it depends on a question without an answer."""
    if isinstance(of, bool):
        return of
    if isinstance(of, Ask):
        return known.get(of)
    if isinstance(of, Matching):
        return _matching([[settle(one, known) for one in row] for row in of.of])
    outcomes = [settle(one, known) for one in of.of]
    decisive = isinstance(of, Some)
    if decisive in outcomes:
        return decisive
    return None if None in outcomes else not decisive


def _matching(cells: list[list[bool | None]]) -> bool | None:
    """Return whether rows and columns can be paired; None if that depends on unknown cells."""
    if _pairs([[cell is True for cell in row] for row in cells]):
        return True
    return None if _pairs([[cell is not False for cell in row] for row in cells]) else False


def _pairs(cells: list[list[bool]]) -> bool:
    """Return whether each row can be given a column of its own (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fits in enumerate(cells[row]):
            if fits and column not in seen:
                seen.add(column)
                if column not in taken or place(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(cells)))
