"""Holds a program that a policy wrote and does what it is told: one JSON line in, one out. Runs inside a sandbox.

The first line is `{"program", "preamble"}`, answered by `{"id": 0, "ok"}` or an error. Then `{"id", "do", ...}`, by
`{"id", "value", "args"}` or `{"id", "error": [class, text]}`. It knows no test and no expected result.
"""

import io
import json
import os
import site
import sys
import types
from typing import Any

from asyncrl.extensions.program_rewards.values import decode, encode

_objects: dict[Any, Any] = {}


def _refer(value: Any) -> int:
    _objects[id(value)] = value
    return id(value)


def _main() -> None:
    commands, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
    # exit() and quit(), which an interpreter without site lacks.
    site.setquit()
    module = types.ModuleType("solution")
    sys.modules["solution"] = module

    def reply(**fields: Any) -> None:
        # What a program does to json or to print is its own loss.
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    reply(ready=True)
    given = json.loads(commands.readline())
    names = module.__dict__
    try:
        exec(compile(given["preamble"], "preamble.py", "exec"), names)
        exec(compile(given["program"], "solution.py", "exec"), names)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            reply(id=0, error=_described(error))
            return
    reply(id=0, ok=True)
    for line in commands:
        asked = json.loads(line)
        try:
            reply(id=asked["id"], **_done(asked, names))
        except BaseException as error:
            reply(id=asked["id"], error=_described(error))


def _described(error: BaseException) -> list[str]:
    kind = next(one for one in type(error).__mro__ if one.__module__ == "builtins")
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    return [kind.__name__, text]


def _done(asked: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    what = asked["do"]
    if what == "get":
        if asked["name"] not in names:
            return {"missing": True}
        return {"value": encode(names[asked["name"]], _refer)}
    target: Any = decode(asked["target"], _objects.__getitem__) if "target" in asked else None
    args = [decode(one, _objects.__getitem__) for one in asked.get("args", [])]
    kwargs = {name: decode(one, _objects.__getitem__) for name, one in asked.get("kwargs", {}).items()}
    if what == "method":
        # As LiveCodeBench finds it: a method of one Solution, else a function.
        if "_instance" not in _objects:
            _objects["_instance"] = names["Solution"]() if "Solution" in names else None
        owner = _objects["_instance"]
        target = getattr(owner, asked["name"]) if owner is not None else names[asked["name"]]
    value: Any
    if what in ("call", "method"):
        value = target(*args, **kwargs)
    elif what == "attribute":
        value = getattr(target, asked["name"])
    elif what == "set":
        setattr(target, asked["name"], args[0])
        value = None
    else:
        does: dict[str, Any] = {
            **{"iter": iter, "next": next, "len": len, "str": str},
            "getitem": lambda one, key: one[key],
            "setitem": lambda one, key, item: one.__setitem__(key, item),
        }
        value = does[what](target, *args)
    after = [encode(one, _refer) for one in args]
    changed = [
        one if one != before else None for one, before in zip(after, asked.get("args", []), strict=True)
    ]
    return {"value": encode(value, _refer), "args": changed}


if __name__ == "__main__":
    _main()
