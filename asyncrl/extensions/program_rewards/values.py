"""Values between the process of a program and that of its tests, as JSON: exact built-in types and nothing else.

Runs inside sandboxes: standard library only. What is of a subclass is sent as what its built-in base holds, so a value
never brings methods of its own. Other objects stay where they are and are sent as a reference.
"""

import base64
import collections
import datetime
import decimal
import fractions
import math
from typing import Any

DEPTH = 200


def encode(value: Any, refer: Any, depth: int = 0) -> Any:
    """Return a value as JSON. refer: makes a reference of an object; raises what it likes to."""
    if depth > DEPTH:
        raise ValueError("a value is nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind.__module__.partition(".")[0] == "numpy":
        return _of_numpy(value, refer, depth)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return _whole(int.__add__(value, 0))
    if isinstance(value, float):
        return {"f": _float(float.__mul__(value, 1.0))}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return {
            "d": [[encode(k, refer, depth + 1), encode(v, refer, depth + 1)] for k, v in dict.items(value)]
        }
    for base, tag in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"), (collections.deque, "Q")):
        if isinstance(value, base):
            members: Any = base.__iter__  # type: ignore[attr-defined]
            return {tag: [encode(one, refer, depth + 1) for one in members(value)]}
    return _rare(value, refer)


def _rare(value: Any, refer: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"b" if isinstance(value, bytes) else "B": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, complex):
        return {"c": [_float(value.real), _float(value.imag)]}
    if isinstance(value, range):
        return {"r": [value.start, value.stop, value.step]}
    if type(value) is fractions.Fraction:
        return {"q": [str(value.numerator), str(value.denominator)]}
    if type(value) is decimal.Decimal:
        return {"D": str(value)}
    if type(value) in (datetime.datetime, datetime.date, datetime.time):
        return {"T": [type(value).__name__, value.isoformat()]}
    if type(value) is datetime.timedelta:
        return {"T": ["timedelta", [value.days, value.seconds, value.microseconds]]}
    if value is Ellipsis or value is NotImplemented:
        return {"C": repr(value)}
    return {"o": refer(value)}


def _of_numpy(value: Any, refer: Any, depth: int) -> Any:
    if hasattr(value, "tolist"):
        plain = value.tolist()
        if hasattr(value, "shape") and value.shape != ():
            return {"n": encode(plain, refer, depth + 1), "y": str(value.dtype)}
        if type(plain).__module__.partition(".")[0] != "numpy":
            return encode(plain, refer, depth + 1)
    return {"o": refer(value)}


def _whole(value: int) -> Any:
    return value if abs(value) < 2**53 else {"i": hex(value)}


def _float(value: float) -> str:
    return value.hex() if math.isfinite(value) else repr(value)


def decode(value: Any, referred: Any) -> Any:
    """Return the value of its JSON. referred: gives the object of a reference. Raises `ValueError` for other forms."""
    if value is None or type(value) in (bool, str, int):
        return value
    if type(value) is not dict or not value:
        raise ValueError("no value")
    tag, held = next(iter(value.items()))
    try:
        if tag in ("l", "t", "s", "z", "Q"):
            made = {"l": list, "t": tuple, "s": set, "z": frozenset, "Q": collections.deque}[tag]
            return made([decode(one, referred) for one in held])
        if tag == "d":
            return {decode(key, referred): decode(one, referred) for key, one in held}
        if tag == "o":
            return referred(held)
        return _decode_rare(tag, held, value, referred)
    except (TypeError, KeyError, OverflowError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"no value: {error}") from None


def _decode_rare(tag: str, held: Any, value: Any, referred: Any) -> Any:
    if tag == "i":
        return int(held, 16)
    if tag == "f":
        return float.fromhex(held)
    if tag in ("b", "B"):
        data = base64.b64decode(held)
        return data if tag == "b" else bytearray(data)
    if tag == "c":
        return complex(float.fromhex(held[0]), float.fromhex(held[1]))
    if tag == "r":
        return range(*held)
    if tag == "q":
        return fractions.Fraction(int(held[0]), int(held[1]))
    if tag == "D":
        return decimal.Decimal(held)
    if tag == "T":
        kind, content = held
        if kind == "timedelta":
            return datetime.timedelta(*content)
        kinds: dict[str, Any] = {"datetime": datetime.datetime, "date": datetime.date, "time": datetime.time}
        return kinds[kind].fromisoformat(content)
    if tag == "C":
        return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[held]
    if tag == "n":
        plain = decode(held, referred)
        try:
            import numpy
        except ImportError:
            return plain
        return numpy.array(plain, dtype=value.get("y"))
    raise ValueError(f"no value of kind {tag!r}")
