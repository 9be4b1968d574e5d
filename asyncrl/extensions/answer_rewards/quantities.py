"""Numbers with units, exactly: "1.6 × 10^-19", "3 1/2 cups", "50%", "18 km/h"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from asyncrl.extensions.answer_rewards.normalisation import canonical

DIGITS = 1000
EXPONENT = 5000
"""Numbers with larger exponents are left to the grader."""
RELATIVE_TOLERANCE = Fraction(1, 10**6)
"""Between a decimal and a value that no decimal can be."""
NOISE = Fraction(1, 10**12)
"""Between decimals of 15 digits or more: what binary floating point adds."""

_DECIMAL = r"(?:\d{1,1000}(?:\.\d{0,1000})?|\.\d{1,1000})"
_POWER = r"10\s?\^\s?(?:\{\s?([-+]?\d{1,6})\s?\}|\(\s?([-+]?\d{1,6})\s?\)|([-+]?\d{1,6}))"
_TIMES = r"\s?(?:\\times|\\cdot|\*|x|X)\s?"
_SIGN = r"\s?([-+]?)\s?[€£¥₹₩₽₫₺₱₪฿₦]?\s?"
_SCIENTIFIC = re.compile(rf"{_SIGN}({_DECIMAL}){_TIMES}{_POWER}")
_POWER_OF_TEN = re.compile(rf"{_SIGN}{_POWER}(?![\d.])")
_E = re.compile(rf"{_SIGN}({_DECIMAL})[eE]([-+]?\d{{1,6}})(?![\w.])")
_MIXED = re.compile(
    rf"{_SIGN}(\d{{1,50}})(?:\s+(?:and\s)?(\d{{1,50}})\s?/\s?(\d{{1,50}})|"
    r"\s?\\frac\s?\{\s?(\d{1,50})\s?\}\s?\{\s?(\d{1,50})\s?\})(?![\d.])"
)
_FRACTION = re.compile(
    rf"{_SIGN}(?:({_DECIMAL})\s?/\s?([-+]?{_DECIMAL})|"
    rf"\\frac\s?\{{\s?([-+]?{_DECIMAL})\s?\}}\s?\{{\s?([-+]?{_DECIMAL})\s?\}}|\\frac\s?(\d)\s?(\d)|"
    rf"\\frac\s?\{{\s?({_DECIMAL})\s?\}}\s?(\d)|\\frac\s?(\d)\s?\{{\s?({_DECIMAL})\s?\}})(?![\d.])"
)
_REPEATING = re.compile(rf"{_SIGN}(\d{{0,50}})\.(\d{{0,50}})\s?\\overline\s?\{{\s?(\d{{1,50}})\s?\}}")
_NUMBER = re.compile(rf"{_SIGN}({_DECIMAL})(?![\d])")
_WORDS = re.compile(r"(?:[^\W\d_]|[./*\- ])+|%|[€£¥₹₩₽₫₺₱₪฿₦]")
_EXPONENT_OF_UNIT = re.compile(r"\s?\^\s?\{?\s?[-+]?\d\s?\}?")
_VARIABLE = re.compile(
    r"(?<![A-Za-z])(?:[a-zA-Z]|pi|sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|min|max|mod|gcd|lcm|or|a\.?m|p\.?m|base|infty|infinity|oo)(?![A-Za-z])"
)

_FACTORS = re.compile(r"([A-Za-z]+)(?:\s?\^\s?\{?\s?[-+]?\d\s?\}?)?")
_ORDINAL = ("st", "nd", "rd", "th")
_SCALE = re.compile(r"\s?(hundred|thousand|million|billion|trillion|dozen)s?(?![A-Za-z])", re.IGNORECASE)
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_PART = re.compile(rf"\s?(?:,\s?)?(?:and\s)?({_DECIMAL})\s?([A-Za-z]{{1,12}})\.?")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and what it counts."""

    value: Fraction
    unit: str
    """As in `_UNITS`, or the words as they are; empty without one."""
    is_decimal: bool
    """Whether it was written with a decimal point or an exponent, so that it may be rounded."""
    digits: int
    """Significant digits it was written with."""
    scale: int = 1
    """By what a word behind it multiplies, as "million" does; the value has it."""


def read_quantity(text: str) -> Quantity | None:
    """Return the number that a text is, with a unit or none; None for anything else."""
    if len(text) > 2 * DIGITS or not any(
        character.isdecimal() or not character.isascii() for character in text
    ):
        return None
    return read_canonical(canonical(text))


def read_canonical(text: str) -> Quantity | None:
    """Return the number that a text in canonical form is; None for anything else."""
    if len(text) > 2 * DIGITS or not any(character.isdigit() for character in text):
        return None
    number = _number(text)
    if number is None:
        return None
    value, end, is_decimal = number
    digits = len(re.sub(r"\D", "", text[:end]).lstrip("0"))
    if (parts := _parts(value, text[end:])) is not None:
        return Quantity(*parts, is_decimal, digits)
    scale = 1
    if (word := _SCALE.match(text, end)) is not None:
        scale = _SCALES[word[1].lower()]
        end = word.end()
    elif _has_factors(text, end):
        return None
    unit = _unit(text[end:])
    if unit is None:
        return None
    return Quantity(value * scale, unit, is_decimal, digits, scale)


def _parts(value: Fraction, rest: str) -> tuple[Fraction, str] | None:
    """Return value and unit of a quantity in several units of one kind: "1 hour 30 minutes", "2 feet 6 inches"."""
    first = re.match(r"\s?([A-Za-z]{1,12})\.?(?=[\s,])", rest)
    if first is None or (unit := canonical_unit(first[1])) not in _UNITS:
        return None
    dimension, size = _UNITS[unit]
    least, place = size, first.end()
    while place < len(rest):
        part = _PART.match(rest, place)
        if part is None or (smaller := canonical_unit(part[2])) not in _UNITS:
            return None
        kind, of = _UNITS[smaller]
        if kind != dimension or of >= least:
            return None
        value += Fraction(part[1]) * of / size * (-1 if value < 0 else 1)
        least, place = of, part.end()
    return (value, unit) if least < size else None


def _has_factors(text: str, end: int) -> bool:
    r"""Whether variables stand right behind the number: "5 m" is five metres, "5m" five times m, as "3ab" and
    "\\frac{1}{2}mg" are products; "5kg", "7th" and "9apples" are not."""
    found = _FACTORS.match(text, end)
    if found is None:
        return False
    if len(found[1]) == 1 or text[end - 1] == "}":
        return len(found[1]) < 4 and found.end() == len(text)
    return len(found[1]) < 4 and found[1] not in _ORDINAL and _compound(canonical_unit(found[1])) is None


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Return True if two quantities are the same. A unit that only one of them names is taken as meant."""
    factors = _factors(gold.unit, answer.unit)
    if factors is None:
        return False
    if "%" in (gold.unit, answer.unit) and gold.unit != answer.unit:
        # "50%" for 50 where the question asks for percent, and for 0.5 where it does not.
        percent, other = (gold, answer) if gold.unit == "%" else (answer, gold)
        return other.unit == "" and other.value in (percent.value, percent.value / 100)
    if (gold.scale == 1) != (answer.scale == 1):
        # "5 million" for 5 where the question asks for millions.
        scaled, other = (gold, answer) if gold.scale != 1 else (answer, gold)
        return other.value in (scaled.value, scaled.value / scaled.scale)
    return _same_value(gold, answer, factors)


def _same_value(gold: Quantity, answer: Quantity, factors: tuple[Fraction, Fraction]) -> bool:
    left, right = gold.value * factors[0], answer.value * factors[1]
    if left == right:
        return True
    largest = max(abs(left), abs(right))
    if gold.is_decimal != answer.is_decimal:
        exact, rounded = (right, answer), (left, gold)
        if not gold.is_decimal:
            exact, rounded = (left, gold), (right, answer)
        if not _terminates(exact[0]) and rounded[1].digits >= 6:
            return abs(left - right) <= RELATIVE_TOLERANCE * largest
    if max(gold.digits, answer.digits) >= 15 and gold.is_decimal | answer.is_decimal:
        return abs(left - right) <= NOISE * largest
    return False


def _terminates(value: Fraction) -> bool:
    """Whether a decimal of some length is the value."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _number(text: str) -> tuple[Fraction, int, bool] | None:
    """Return the number at the start of a text, where it ends, and whether it may be rounded."""
    try:
        if found := _SCIENTIFIC.match(text):
            sign, digits, *exponents = found.groups()
            return _signed(sign, Fraction(digits) * _ten(exponents)), found.end(), True
        if found := _POWER_OF_TEN.match(text):
            sign, *exponents = found.groups()
            return _signed(sign, _ten(exponents)), found.end(), False
        if found := _E.match(text):
            sign, digits, exponent = found.groups()
            return _signed(sign, Fraction(digits) * _ten([exponent])), found.end(), True
        if found := _MIXED.match(text):
            sign, whole, *parts = found.groups()
            part, of = [int(one) for one in parts if one is not None]
            if 0 < part < of:
                return _signed(sign, int(whole) + Fraction(part, of)), found.end(), False
        if found := _FRACTION.match(text):
            sign, *parts = found.groups()
            top, bottom = [Fraction(part.replace("+", "")) for part in parts if part is not None]
            return _signed(sign, top / bottom), found.end(), any("." in part for part in parts if part)
        if found := _REPEATING.match(text):
            sign, whole, before, repeated = found.groups()
            rest = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(before))
            return _signed(sign, Fraction(f"{whole or 0}.{before or 0}") + rest), found.end(), False
        if found := _NUMBER.match(text):
            sign, digits = found.groups()
            return _signed(sign, Fraction(digits)), found.end(), "." in digits
    except (ValueError, ZeroDivisionError):
        pass
    return None


def _ten(exponents: list[str | None]) -> Fraction:
    exponent = int(next(one for one in exponents if one))
    if abs(exponent) > EXPONENT:
        raise ValueError("an exponent that large is not computed")
    return Fraction(10) ** exponent


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _unit(text: str) -> str | None:
    """Return the unit that a text is, "" for none, None if it is something else."""
    text = text.strip().strip(".")
    if not text:
        return ""
    text = text.replace(r"\cdot", "*")
    if len(text) > 60 or _WORDS.fullmatch(_EXPONENT_OF_UNIT.sub("", text)) is None:
        return None
    known = canonical_unit(text)
    if known in _UNITS or _compound(known) is not None:
        return known
    if _VARIABLE.search(text) or len(text.split()) > 4:
        return None
    return known


def is_known_unit(unit: str) -> bool:
    """Whether a unit as `canonical_unit` writes it is one that is converted and told from others."""
    return _compound(unit) is not None


def canonical_unit(text: str) -> str:
    """Return a unit under its usual short name; words that are no unit as they are, in the singular."""
    text = re.sub(r"\s?\^\s?\{?\s?([-+]?\d)\s?\}?", r"^\1", text.strip()).replace(" per ", "/")
    text = re.sub(r"\b(?:sq|square)\.? (\w+)", r"\1^2", text)
    text = re.sub(r"\b(?:cu|cubic)\.? (\w+)", r"\1^3", text)
    parts = re.split(r"(\s?[/*]\s?|-)", text)
    return "".join(_short(part.strip()) for part in parts)


def _short(word: str) -> str:
    base, power, exponent = word.partition("^")
    base = base.strip().removesuffix(".")
    if base in _UNITS:
        return base + power + exponent
    lower = base.lower()
    for name in (lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if name in _NAMES:
            return _NAMES[name] + power + exponent
    return lower.removesuffix("s") + power + exponent


_NAMES = {
    "gram": "g", "kilogram": "kg", "kilo": "kg", "milligram": "mg", "pound": "lb", "lb": "lb", "ounce": "oz",
    "tonne": "t",
    "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "millimeter": "mm", "millimetre": "mm",
    "kilometer": "km", "kilometre": "km", "inch": "inch", "inche": "inch", "foot": "ft", "feet": "ft",
    "yard": "yd", "mile": "mi",
    "second": "s", "sec": "s", "minute": "min", "min": "min", "hour": "h", "hr": "h", "day": "day", "week": "week",
    "month": "month", "year": "year", "yr": "year", "liter": "l", "litre": "l", "milliliter": "ml", "millilitre": "ml",
    "degree": "degree", "deg": "degree", "radian": "rad", "dollar": "dollar", "usd": "dollar", "cent": "cent",
    "euro": "euro", "eur": "euro", "percent": "%", "per cent": "%", "pct": "%", "kph": "km/h", "mph": "mi/h",
    "newton": "N",
    "joule": "J", "watt": "W", "volt": "V", "celsius": "celsius", "fahrenheit": "fahrenheit", "kelvin": "K",
    "degree celsius": "celsius", "degree fahrenheit": "fahrenheit", "degree c": "celsius", "degree f": "fahrenheit",
    "hertz": "Hz", "pascal": "Pa", "mole": "mol", "ampere": "A", "ohm": "ohm",
    "a.m": "am", "p.m": "pm",
    "公里": "km", "千米": "km", "米": "m", "厘米": "cm", "毫米": "mm", "千克": "kg", "公斤": "kg", "克": "g", "吨": "t",
    "小时": "h", "分钟": "min", "秒": "s", "天": "day", "度": "degree", "€": "euro",
}  # fmt: skip
_UNITS: dict[str, tuple[str, Fraction]] = {
    "g": ("mass", Fraction(1)), "kg": ("mass", Fraction(1000)), "mg": ("mass", Fraction(1, 1000)),
    "t": ("mass", Fraction(10**6)), "lb": ("pounds", Fraction(16)), "oz": ("pounds", Fraction(1)),
    "m": ("length", Fraction(1)), "cm": ("length", Fraction(1, 100)), "mm": ("length", Fraction(1, 1000)),
    "km": ("length", Fraction(1000)), "inch": ("feet", Fraction(1)), "ft": ("feet", Fraction(12)),
    "yd": ("feet", Fraction(36)), "mi": ("feet", Fraction(63360)),
    "s": ("time", Fraction(1)), "ms": ("time", Fraction(1, 1000)), "min": ("time", Fraction(60)),
    "h": ("time", Fraction(3600)), "day": ("time", Fraction(86400)), "week": ("time", Fraction(604800)),
    "month": ("months", Fraction(1)), "year": ("months", Fraction(12)),
    "l": ("volume", Fraction(1000)), "L": ("volume", Fraction(1000)), "ml": ("volume", Fraction(1)),
    "mL": ("volume", Fraction(1)), "degree": ("degrees", Fraction(1)), "rad": ("radians", Fraction(1)),
    "dollar": ("dollars", Fraction(100)), "cent": ("dollars", Fraction(1)), "euro": ("euros", Fraction(1)),
    "%": ("percent", Fraction(1)), "celsius": ("celsius", Fraction(1)), "fahrenheit": ("fahrenheit", Fraction(1)),
    "K": ("kelvin", Fraction(1)), "N": ("newton", Fraction(1)), "J": ("joule", Fraction(1)),
    "kJ": ("joule", Fraction(1000)),
    "W": ("watt", Fraction(1)), "kW": ("watt", Fraction(1000)), "V": ("volt", Fraction(1)),
    "A": ("ampere", Fraction(1)),
    "Hz": ("hertz", Fraction(1)), "Pa": ("pascal", Fraction(1)), "mol": ("mole", Fraction(1)),
    "ohm": ("ohm", Fraction(1)), "am": ("before noon", Fraction(1)), "pm": ("after noon", Fraction(1)),
}  # fmt: skip


_LONG_NAMES = [name for name in (*_NAMES, "units") if len(name) > 3 or name == "day"] + [
    "cm",
    "km",
    "mm",
    "kg",
]
_BEHIND = re.compile(
    r"\s*(?:degree|%|(?<![\\A-Za-z])((?:(?:square|cubic|sq|cu)\.? )?"
    rf"(?:{'|'.join(sorted(map(re.escape, _LONG_NAMES), key=len, reverse=True))})(?:e?s)?"
    r"(?:(?: per |\s?/\s?)(?:[a-z]{4,12}|s|h))?(?:\s?\^\s?\{?[23]\}?)?))\s*$",
    re.IGNORECASE,
)
"""What counts a formula. Abbreviations of letters that formulas have as variables ("mg", "mi", "s") do not."""

_LETTER_BEHIND = re.compile(r"(.*(?:[\d)}]|\\pi))\s([mgshlLNJWVK](?:\s?\^\s?\{?[23]\}?)?)")
_WITH_VARIABLES = re.compile(r"(?<!^)[-+]|(?<![\\A-Za-z])[A-Za-z]")


def split_unit(text: str) -> tuple[str, str]:
    r"""Return a formula in canonical form without the unit at its end, and that unit as `canonical_unit` writes it.

    "2\\pi cm" is ("2\\pi", "cm"). The unit is "" where there is none, for degrees and percent, and for "units".
    """
    if (letter := _LETTER_BEHIND.fullmatch(text)) and _WITH_VARIABLES.search(letter[1]) is None:
        return letter[1].strip(), canonical_unit(letter[2])
    found = _BEHIND.search(text)
    if found is None or not (formula := text[: found.start()].strip()):
        return text, ""
    if not any(character.isdigit() or character == "\\" for character in formula):
        # Words, such as "one hour".
        return text, ""
    unit = canonical_unit(found[1]) if found[1] else ""
    return formula, "" if unit.startswith("unit") else unit


def unit_ratio(gold: str, answer: str) -> Fraction | None:
    """Return how many of the gold's unit the answer's is; 1 where only one is named, None where they differ in kind."""
    factors = _factors(gold, answer)
    return None if factors is None else factors[1] / factors[0]


def _compound(unit: str) -> tuple[str, Fraction] | None:
    """Return dimension and size of a known unit or of a product and quotient of such; None of any other."""
    dimensions: list[str] = []
    size = Fraction(1)
    below = False
    for part in re.split(r"([/*])", unit):
        if part in ("/", "*"):
            below = below or part == "/"
            continue
        base, _, exponent = part.partition("^")
        if base not in _UNITS:
            return None
        power = int(exponent or 1) * (-1 if below else 1)
        dimension, factor = _UNITS[base]
        dimensions.append(f"{dimension}^{power}")
        size *= factor**power
    return "*".join(sorted(dimensions)), size


def _factors(gold: str, answer: str) -> tuple[Fraction, Fraction] | None:
    """Return by what to multiply each value before they are compared; None if the units exclude each other."""
    one = Fraction(1)
    left, right = _compound(gold) if gold else None, _compound(answer) if answer else None
    if (
        left is None
        and right is None
        and gold
        and answer
        and gold != answer
        and not (gold + answer).isascii()
    ):
        # Of other languages' words none is known to be a noun: "5月" is a month and "5日" a day.
        return None
    if left is None or right is None or "%" in (gold, answer):
        # Nouns that are counted ("students", "people") say the same in many words.
        return None if "%" in (gold, answer) and gold and answer and gold != answer else (one, one)
    return (left[1], right[1]) if left[0] == right[0] else None
