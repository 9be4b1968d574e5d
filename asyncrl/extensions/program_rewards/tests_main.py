"""Runs a benchmark's tests of a function that is in another sandbox: calls go out as JSON lines. Runs inside a sandbox.

The first line is `{"check", "prefix", "functions"}`. The last line it writes is `{"verdict", "why"}`. Names that the
tests use are looked for among `functions` (in the program), what `prefix` defines, Python's own, and the rest of the
program, in this order: a program cannot replace what judges it.
"""

import builtins
import contextlib
import importlib
import io
import json
import os
import sys
import types
from typing import Any

from asyncrl.extensions.program_rewards.values import decode, encode


class Unsendable(BaseException):
    """The tests pass something that no other process can be given."""


class Remote:
    """An object of the program. It equals nothing but itself and is neither true nor false."""

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ask("attribute", self, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask("set", self, value, name=name)

    def __iter__(self) -> Any:
        return ask("iter", self)

    def __next__(self) -> Any:
        return ask("next", self)

    def __len__(self) -> Any:
        return ask("len", self)

    def __getitem__(self, key: Any) -> Any:
        return ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        ask("setitem", self, key, value)

    def __contains__(self, item: Any) -> Any:
        # What it contains is compared here.
        return any(item == one for one in self)

    def __str__(self) -> str:
        return str.__str__(ask("str", self))

    def __bool__(self) -> bool:
        raise TypeError("an object of the program is neither true nor false")


_known: dict[int, Remote] = {}
_streams: list[Any] = []
_number = 0


def _referred(number: int) -> Remote:
    return _known.setdefault(number, Remote(number))


def _refer(value: Any) -> int:
    if isinstance(value, Remote):
        return object.__getattribute__(value, "_number")  # type: ignore[no-any-return]
    raise Unsendable(f"the tests pass an object of type {type(value).__name__} to the program")


def ask(what: str, target: Any = None, *args: Any, name: str = "", **kwargs: Any) -> Any:
    """Have the program do something and return what it gives."""
    global _number
    _number += 1
    answer: dict[str, Any] = {
        "id": _number,
        "do": what,
        "name": name,
        "args": [encode(one, _refer) for one in args],
    }
    if target is not None:
        answer["target"] = encode(target, _refer)
    answer["kwargs"] = {key: encode(one, _refer) for key, one in kwargs.items()}
    _streams[1].write(json.dumps({"ask": answer}) + "\n")
    _streams[1].flush()
    reply = json.loads(_streams[0].readline())
    if "error" in reply:
        kind, text = reply["error"]
        found: Any = getattr(builtins, str(kind), None)
        fits = isinstance(found, type) and issubclass(found, Exception)
        raise (found if fits else RuntimeError)(str(text))
    if reply.get("missing"):
        raise NameError(f"the program has no {name!r}")
    _copy_back(args, reply.get("args") or [])
    return decode(reply["value"], _referred)


def _copy_back(args: Any, changed: list[Any]) -> None:
    """Do to arguments what the program did to its copies of them."""
    for one, now in zip(args, changed, strict=False):
        if now is None:
            continue
        value = decode(now, _referred)
        if isinstance(one, list | bytearray) and type(value) is type(one):
            one[:] = value
        elif isinstance(one, dict | set) and type(value) is type(one):
            one.clear()
            one.update(value)


def _used(code: types.CodeType) -> dict[str, None]:
    """Return the names that code and the functions in it look up, in order."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(_used(constant))
    return found


def _main() -> None:
    _streams[:] = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
    _streams[1].write(json.dumps({"ready": True}) + "\n")
    _streams[1].flush()
    given = json.loads(_streams[0].readline())
    verdict: dict[str, Any] = {"verdict": "passed", "why": ""}
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        check = compile(given["check"], "check.py", "exec")
        exec(compile(given["prefix"], "prefix.py", "exec"), names)
    except BaseException as error:
        verdict = {
            "verdict": "broken",
            "why": f"the tests cannot be read: {type(error).__name__}: {error}"[:500],
        }
    else:
        verdict = _checked(check, names, set(given["functions"]))
    _streams[1].write(json.dumps(verdict) + "\n")
    _streams[1].flush()


def _checked(check: types.CodeType, names: dict[str, Any], functions: set[str]) -> dict[str, Any]:
    try:
        for name in _used(check):
            own = name in names or hasattr(builtins, name)
            if name not in functions and not own and name in sys.stdlib_module_names:
                names[name] = importlib.import_module(name)
            elif name in functions or not own:
                # The tests may define it themselves, or it is an attribute's name.
                with contextlib.suppress(NameError):
                    names[name] = ask("get", name=name)
        exec(check, names)
    except Unsendable as error:
        return {"verdict": "unsendable", "why": str(error)}
    except BaseException as error:
        return {"verdict": "failed", "why": f"{type(error).__name__}: {error}"[:500]}
    return {"verdict": "passed", "why": ""}


if __name__ == "__main__":
    _main()
