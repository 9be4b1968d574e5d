"""A repository with faults: its files, the calls that judge it, and their expected results."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from asyncrl.envs.repair.cases import CASES
from asyncrl.envs.repair.faults import Fault, faults, function_text

HIDDEN_CASES = 30
"""Calls of each function that judge a repair."""
SHOWN_CASES = 3
"""Calls of each function in the repository's own tests."""
Call = tuple[str, str, list[Any]]
"""Module, function, arguments."""


@dataclass(frozen=True, slots=True)
class Repository:
    """`files` are for the agent; `repaired` are the same without the faults."""

    files: Mapping[str, str]
    repaired: Mapping[str, str]
    calls: tuple[Call, ...]
    expected: tuple[Any, ...]
    """Result of each call: {"value": ...} or {"raises": name}."""

    def edits(self) -> list[tuple[str, str, str]]:
        """Return (path, old text, new text) for each file with a fault; the old text occurs once in it."""
        return [
            (path, *_difference(text, self.repaired[path]))
            for path, text in self.files.items()
            if text != self.repaired[path]
        ]


@lru_cache(maxsize=32)
def library_source(module: str) -> str:
    """Return the text of a module of the library, without the comment for this project's type checker."""
    text = resources.files("asyncrl.envs.repair.library").joinpath(f"{module}.py").read_text(encoding="utf-8")
    return text.removeprefix("# mypy: ignore-errors\n")


def make_repository(level: int, rng: random.Random) -> Repository:
    """Return a repository: 1: one function, one fault; 2: a module, one fault; 3: four modules, two faults."""
    modules = rng.sample(sorted(CASES), {1: 1, 2: 1, 3: 4}[level])
    broken = modules[: 2 if level == 3 else 1]
    names = {m: [rng.choice(sorted(CASES[m]))] if level == 1 else list(CASES[m]) for m in modules}
    sources = {
        m: function_text(library_source(m), names[m][0]) if level == 1 else library_source(m) for m in modules
    }
    files: dict[str, str] = {}
    repaired: dict[str, str] = {}
    calls: list[Call] = []
    expected: list[Any] = []
    for module in modules:
        found = _draw_cases(module, names[module], rng)
        results = {name: [run(sources[module], name, a) for a in found[name]] for name in names[module]}
        wrong, shown = sources[module], {name: list(range(SHOWN_CASES)) for name in names[module]}
        if module in broken:
            wrong = _break(sources[module], found, results, shown, rng)
        test = _test_file(module, found, results, shown)
        files |= {f"{module}.py": wrong, f"tests/test_{module}.py": test}
        repaired |= {f"{module}.py": sources[module], f"tests/test_{module}.py": test}
        calls += [(module, name, a) for name in names[module] for a in found[name]]
        expected += [result for name in names[module] for result in results[name]]
    return Repository(files, repaired, tuple(calls), tuple(expected))


def run(source: str, function: str, arguments: list[Any]) -> dict[str, Any]:
    """Return the result of a library function, faulty or not, for the arguments."""
    try:
        return {
            "value": json.loads(json.dumps(_defined(source)[function](*json.loads(json.dumps(arguments)))))
        }
    except Exception as error:
        return {"raises": type(error).__name__}


@lru_cache(maxsize=64)
def _defined(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "library", "exec"), names)
    return names


def _draw_cases(module: str, names: list[str], rng: random.Random) -> dict[str, list[list[Any]]]:
    """Return distinct arguments, up to `HIDDEN_CASES`."""
    found: dict[str, list[list[Any]]] = {}
    for name in names:
        drawn = {
            json.dumps(arguments): arguments
            for arguments in (CASES[module][name](rng) for _ in range(HIDDEN_CASES))
        }
        found[name] = list(drawn.values())
    return found


def _break(
    source: str,
    cases: dict[str, list[list[Any]]],
    results: dict[str, list[Any]],
    shown: dict[str, list[int]],
    rng: random.Random,
) -> str:
    """Insert a fault that some case reveals, and make sure that a visible case does."""
    candidates: list[tuple[str, Fault]] = [(name, f) for name in cases for f in faults(source, name)]
    rng.shuffle(candidates)
    for function, fault in candidates:
        wrong = fault.apply(source)
        failing = [
            i for i, a in enumerate(cases[function]) if run(wrong, function, a) != results[function][i]
        ]
        if failing:
            shown[function][-1] = failing[0]
            return wrong
    raise AssertionError(f"no fault of {', '.join(cases)} changes what it returns")


def _test_file(
    module: str,
    cases: dict[str, list[list[Any]]],
    results: dict[str, list[Any]],
    shown: dict[str, list[int]],
) -> str:
    lines = ["import unittest", "", f"import {module}", "", "", "class Tests(unittest.TestCase):"]
    for name, rows in cases.items():
        lines += [f"    def test_{name}(self):"]
        for i in sorted(set(shown[name])):
            if i < len(rows) and "value" in results[name][i]:
                arguments = ", ".join(repr(a) for a in rows[i])
                lines += [
                    f"        self.assertEqual({module}.{name}({arguments}), {results[name][i]['value']!r})"
                ]
        lines += [""]
    return "\n".join(lines)


def _difference(old: str, new: str) -> tuple[str, str]:
    """Return the changed lines of two texts, with as many lines before them as make the old ones unique."""
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    tail = next(i for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y)
    while True:
        before, after = "".join(a[start : len(a) - tail]), "".join(b[start : len(b) - tail])
        if old.count(before) == 1 or start == 0:
            return before, after
        start -= 1
