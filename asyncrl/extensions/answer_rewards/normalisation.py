"""Brings what means the same to one form: digits, signs, blanks, LaTeX's ways to write them."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–—﹣－‐‑‒", "-"),
        **dict.fromkeys("×✕✖⨯", r"\times "),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        "÷": "/", "∕": "/", "⁄": "/", "／": "/",
        **dict.fromkeys("≈≃≅", r"\approx "),
        "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "±": r"\pm ",
        "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "∅": r"\emptyset ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
        "’": "'", "‘": "'", "“": '"', "”": '"', "％": "%", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")",
        "。": ".", "、": ",", "＝": "=", "＋": "+", "＄": "$", "¢": " cents ", "￠": " cents ",
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f", ""),
    }
)  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_SPACES = re.compile(r"(?<!\\)(?:\\[,;:!>]|\\q?quad\b|\\(?:hspace|vspace|mspace)\{[^{}]{0,20}\}|~|\\ )|\s+")
_GROUPED = re.compile(
    r"(?<![\d.])(?<!\d,)\d{1,3}(?:(?:,\\! ?|\{,\}|\\,|\\!|\\;|\\:|\\ |,|_|'|~| )\d{3})+(?![\d])(?!(?:,|\{,\})\d)"
)
_GROUP_MARK = re.compile(r"[^\d]+")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\\?\$")
_SIZES = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|mathstrut|strut)(?![A-Za-z])\.?"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|md|up|sl|sc)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|boldsymbol|operatorname\*?|"
    r"bf|rm|emph|underline|bm|boxed|fbox)\s?\{([^{}]*)\}"
)
_MODULUS = re.compile(
    r"\s{0,3}(?:\(\s{0,3}\\?[pb]?mod|\\[pb]?mod|(?<=\d)\s[pb]?mod)\s{0,3}\{?\s{0,3}(\w{1,20})\s{0,3}\}?(?:\s{0,3}\))?"
)
"""The modulus of a congruence: `\\pmod{5}`, `(\\bmod 5)`, `(mod 5)`, `2 mod 5`."""
_ROOT = re.compile(r"\\sqrt\s{0,3}(?:\(([^(){}]{1,80})\)|(\d{2,40}(?:\.\d{1,40})?))")
"""Roots without braces, of which LaTeX would take the first character alone."""
_BARE_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt(?=\s?[({\d])")
_UNIT_LETTERS = {
    "m": "meters", "g": "grams", "s": "seconds", "h": "hours", "L": "liters", "l": "liters", "N": "newtons",
    "J": "joules", "W": "watts", "V": "volts", "K": "kelvin", "in": "inches", "yd": "yards", "mi": "miles",
}  # fmt: skip
_UNIT = re.compile(
    r"(?<=[\d})i])((?:\\[,;:! ]|~|\s)*)\\(?:text(?:rm)?|mathrm|mbox|hbox|rm)\s?\{\s*"
    rf"({'|'.join(_UNIT_LETTERS)})\.?\s*\}}"
)
"""Upright letters behind a number or formula: a unit, where italic ones are a variable."""
_CURRENCY = re.compile(
    r"(?:(?<=^)|(?<=[\s-]))(?:(US|A|AU|C|CA|NZ|HK|S)\s?\\?\$|(USD|EUR|GBP|INR|JPY|CNY|RMB|Rs\.?|AUD|CAD)\s?)(?=\d)"
)
_DOLLARS = re.compile(r"^(\s*[-+]?)\s?(?:\\\$|\$(?!.*(?<!\\)\$))\s?(\d[\d,.{}!\\]*?)\.?\s*$")
_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree(?:s)?(?![A-Za-z])")
_POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(-])")
"""Of Python; other pairs of stars are bold."""
_INFINITY = re.compile(r"(?<![A-Za-z\\])(?:positive )?infinity(?![A-Za-z])", re.IGNORECASE)
_REMARK = re.compile(r"(?:(?<=\s)|^)\((?!\s*mod\b)[^()]{0,200}\)")
_WORD = re.compile(r"[A-Za-z]{2,}")


def plain_characters(text: str) -> str:
    """Return the text with one character for what several stand for: digits of all scripts, minus signs, blanks."""
    if text.isascii():
        return text
    text = _VULGAR.sub(lambda found: _vulgar(found[0]), text)
    text = _RAISED_RUN.sub(lambda found: "^{" + "".join(_RAISED[c] for c in found[0]) + "}", text)
    text = _LOWERED_RUN.sub(lambda found: "_{" + "".join(_LOWERED[c] for c in found[0]) + "}", text)
    text = text.translate(_SIGNS)
    return unicodedata.normalize("NFKC", "".join(_digit(character) for character in text)).translate(_SIGNS)


def without_pictures(text: str) -> str:
    """Return the text with blanks for emoji, check marks and the like."""
    return text if text.isascii() else "".join(" " if unicodedata.category(c) == "So" else c for c in text)


def without_remarks(text: str) -> str:
    """Return the text without remarks in parentheses, such as "42 (not 41)" and "9 (apples)"."""

    def kept(found: re.Match[str]) -> str:
        inner = found[0]
        return (
            ""
            if "\\" not in inner and _WORD.search(inner) and not inner[1:].startswith(tuple("ABCDEFGHIJ"))
            else inner
        )

    shorter = _REMARK.sub(kept, text)
    return shorter if shorter.strip() else text


def canonical(text: str) -> str:
    """Return an answer as the comparison reads it: without delimiters, sizes, fonts, grouping of digits."""
    text = (
        plain_characters(text)
        .replace(r"\dfrac", r"\frac")
        .replace(r"\tfrac", r"\frac")
        .replace(r"\cfrac", r"\frac")
    )
    text = _CURRENCY.sub(lambda found: "$" if found[1] else "", text)
    text = _UNIT.sub(
        lambda found: f"{found[1]} {_UNIT_LETTERS[found[2]]} ", _DOLLARS.sub(r"\1\2 dollars", text)
    )
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", _BARE_ROOT.sub(r"\\sqrt", text))
    text = _INFINITY.sub(r" \\infty ", _POWER.sub("^", text))
    if "mod" in text:
        congruent = _MODULUS.sub(r" (mod \1)", text)
        text = congruent.replace(r"\equiv", "=") if congruent != text else text
    text = text.replace("bmatrix}", "pmatrix}").replace("{smallmatrix}", "{pmatrix}")
    text = _ungrouped(text)
    text = _SIZES.sub("", text)
    for _ in range(4):
        shorter = _TEXT.sub(r" \1 ", text)
        if shorter == text:
            break
        text = shorter
    text = _DELIMITERS.sub(
        " ", text.replace(r"\%", "%").replace(r"\#", "#").replace("**", " ").replace("`", " ")
    )
    text = _DEGREES.sub(" degree ", text)
    text = _SPACES.sub(" ", text)
    text = without_remarks(text.strip())
    return _ungrouped(text.strip().strip(",;:").removesuffix(".").strip())


def _ungrouped(text: str) -> str:
    """Return the text with 1,234,567 and LaTeX's other ways to group digits written as 1234567."""
    return _GROUPED.sub(_joined, text)


def _joined(found: re.Match[str]) -> str:
    marks = set(_GROUP_MARK.findall(found[0]))
    # One kind of mark throughout; blanks and commas alone group only what can be no list of numbers.
    return _GROUP_MARK.sub("", found[0]) if len(marks) == 1 else found[0]


def _digit(character: str) -> str:
    if character.isascii():
        return character
    if not character.isdecimal():
        # Emoji and check marks say nothing.
        is_blank = (character.isspace() and character != "\n") or unicodedata.category(character) == "So"
        return " " if is_blank else character
    return str(unicodedata.decimal(character))


def _vulgar(character: str) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", character).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}" if bottom else character
