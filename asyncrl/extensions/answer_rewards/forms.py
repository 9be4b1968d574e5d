r"""Other ways to write an answer, brought to the one that is compared: sets, intervals, repeating decimals, words.

Each rule looks at a text in canonical form (`normalisation.canonical`) and changes it only where it can mean one thing.
"""

from __future__ import annotations

import re

from asyncrl.extensions.answer_rewards.quantities import canonical_unit, is_known_unit

_ARRAY = re.compile(
    r"(?:[\[(]\s?)?\\begin\{(?:array|matrix)\}(?:\{[clr| ]{0,40}\})?(.*?)\\end\{(?:array|matrix)\}(?:\s?[\])])?",
    re.DOTALL,
)
_SET_BUILDER = re.compile(
    r"\\\{\s?([A-Za-z])(?:\s?\\in\s?\\mathbb\s?\{?\s?R\s?\}?)?\s?(?:\\mid|\||:)\s?(.{1,200})\\\}", re.DOTALL
)
_REALS = re.compile(
    r"(?:[A-Za-z]\s?\\in\s?)?(?:\\(?:mathbb|mathbf|Bbb|mathds)\s?\{?\s?R\s?\}?|\\R|ℝ)"
    r"|(?:the set of )?(?:all )?real numbers|all reals",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"\\varnothing|\\\{\s?\\\}|\{\s?\}|(?:the )?(?:empty|null) set|(?:there (?:is|are) )?no solutions?",
    re.IGNORECASE,
)
_RAW_SET = re.compile(r"\{([^{}\\]{1,400}[,;][^{}]{0,400})\}")
_REVERSED = re.compile(r"([\[\]])\s?([^\[\](),;]{1,80})[,;]\s?([^\[\](),;]{1,80})([\[\]])")
_DOTTED = re.compile(r"(\d{0,40}\.\d{0,40}?)\\dot\s?\{?\s?(\d)\s?\}?(?:(\d{0,40})\\dot\s?\{?\s?(\d)\s?\}?)?")
_ENDLESS = re.compile(r"([-+]?\d{0,20}\.\d{0,12}?)(\d{1,6}?)\2{2,12}(\d{0,5})\s?(?:\.\.\.|…|\\(?:l|c)?dots)")
_PROPORTION = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) to (\d{1,20}(?:\.\d{1,9})?)")
_SIGNED = re.compile(r"^negative\s+(?=[\d\\.$(])", re.IGNORECASE)

_ABOUT = re.compile(r"^(?:\\(?:approx|simeq|sim)(?![A-Za-z])|≈)\s*(?=[-+\d.\\$(])")
_ANGLE = r"\s?(\d{1,6}(?:\.\d{1,6})?)\s?degree\s?"
_OF_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\s?\^\s?\{?\s?\d\s?\}?)?)\s?"
    rf"(?:\({_ANGLE}\)|\{{{_ANGLE}\}}|{_ANGLE})"
)
"""A function of an angle in degrees. Beside a number alone "degree" is a unit."""

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {
    **{word: number for number, word in enumerate(_ONES.split())},
    **{word: 10 * tens for tens, word in enumerate(_TENS.split(), 2)},
}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORDS_OF_NUMBERS = 12


def rewritten(text: str) -> str:
    """Return a text in canonical form as the comparison reads it."""
    if text.isalpha() or " " in text[:40]:
        text = spelled_number(text) or text
    text = _ABOUT.sub("", _SIGNED.sub("-", text))
    if _EMPTY.fullmatch(text):
        return r"\emptyset"
    if _REALS.fullmatch(text):
        return r"(-\infty, \infty)"
    if (proportion := _PROPORTION.fullmatch(text)) is not None:
        return f"{proportion[1]}:{proportion[2]}"
    if (builder := _SET_BUILDER.fullmatch(text)) is not None and builder[1] in builder[2]:
        return builder[2].strip()
    if (braces := _RAW_SET.fullmatch(text)) is not None:
        text = rf"\{{{braces[1]}\}}"
    if " degree" in text:
        text = _OF_DEGREES.sub(
            lambda found: rf"{found[1]}(\frac{{{found[2] or found[3] or found[4]} \pi}}{{180}})", text
        )
    if "\\" in text:
        text = text.replace(r"\langle", "(").replace(r"\rangle", ")").replace(r"\varnothing", r"\emptyset")
        if r"\pm" not in text:
            text = re.sub(r"\\mp(?![A-Za-z])", r"\\pm", text)
        text = _ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    if text[:1] == "]" or text[-1:] == "[":
        text = _REVERSED.sub(_as_usual, text)
    text = _DOTTED.sub(
        lambda found: f"{found[1]}\\overline{{{''.join(one or '' for one in found.groups()[1:])}}}", text
    )
    if len(text) < 80 and (endless := _ENDLESS.fullmatch(text)) is not None:
        before, repeated, rest = endless.groups()
        if repeated.startswith(rest) and len(endless[0]) - len(before) - len(rest) >= 6:
            text = f"{before}\\overline{{{repeated}}}"
    return text


def spelled_number(text: str) -> str | None:
    """Return a number that is written in words in digits, with the unit behind it if there is one; None otherwise.

    "twenty-one" is "21", "three hours" "3 hours"; "one direction" is no number.
    """
    words = text.casefold().replace("-", " ").split()
    if not words or len(words) > _WORDS_OF_NUMBERS or words[0] not in (*_SMALL, "negative"):
        return None
    sign = "-" if words[0] == "negative" else ""
    words = words[1:] if sign else words
    whole, part, count = 0, 0, 0
    for word in words:
        if word in _SMALL and (part % 10 == 0 if _SMALL[word] < 10 else part % 100 == 0):
            part += _SMALL[word]
        elif word == "hundred" and 0 < part < 10:
            part *= 100
        elif word in _LARGE and part:
            whole, part = whole + part * _LARGE[word], 0
        elif not (word == "and" and count):
            break
        count += 1
    unit = " ".join(words[count:])
    if not count or words[count - 1] == "and" or (unit and not is_known_unit(canonical_unit(unit))):
        return None
    return f"{sign}{whole + part} {unit}".strip()


def _as_usual(found: re.Match[str]) -> str:
    """Return "]0, 1[" as "(0, 1)"."""
    first, lower, upper, last = found.groups()
    return f"{'(' if first == ']' else '['}{lower.strip()}, {upper.strip()}{')' if last == '[' else ']'}"
