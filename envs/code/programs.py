"""Reference programs, written once and rendered in every language of idioms.toml.

A program is a small subset of Python: `read()`, assignments, `while`, `print`, whole numbers, `+ - * // %`,
comparisons, `and`, `or`, `x if c else y`. All values stay between 0 and 2**53, where every language agrees.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import ConfigError

IDIOMS = Path(__file__).with_name("idioms.toml")
LIKE_C = {
    "name": "{name}",
    "set": "{name} = {value};",
    "open": "while ({value}) {",
    "close": "}",
    "choose": "({test} ? {yes} : {no})",
    "divide": "({left} / {right})",
    "both": "({left} && {right})",
    "either": "({left} || {right})",
}
SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.Eq: "==",
}  # fmt: skip


@functools.cache
def idioms() -> dict[str, dict[str, str | list[str]]]:
    """Return the tables of idioms.toml by language."""
    return tomllib.loads(IDIOMS.read_text(encoding="utf-8"))


def run(source: str, numbers: Sequence[int]) -> int:
    """Return the output of a reference program. The source is this package's own, so Python runs it directly."""
    given = iter(numbers)
    printed: list[int] = []
    exec(source, {"read": lambda: next(given), "print": printed.append})
    return int(printed[0])


def render(source: str, language: str) -> str:
    """Return the program in a language. Raises `ConfigError` for a language that idioms.toml lacks."""
    table = idioms().get(language)
    if table is None:
        raise ConfigError(
            f"the scripted expert does not know language {language!r}; it knows {', '.join(idioms())}. "
            "Add a table to envs/code/idioms.toml"
        )
    tree = ast.parse(source)
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"read", "print"})
    writer = _Writer({**LIKE_C, **{key: str(value) for key, value in table.items()}}, language == "python")
    head, tail = (list(table.get(key, ())) for key in ("head", "tail"))
    zeros = ", ".join(f"{name} = 0" for name in names)
    lines = [line.replace("{zeros}", zeros) for line in head] + writer.block(tree.body)
    return "\n".join(lines + tail)


class _Writer:
    """Writes statements and expressions with one language's idioms."""

    def __init__(self, table: dict[str, str], indented: bool) -> None:
        self.table, self.indented = table, indented

    def block(self, body: list[ast.stmt]) -> list[str]:
        return [line for statement in body for line in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[str]:
        if isinstance(node, ast.While):
            inside = self.block(node.body)
            # Only Python's blocks end by indentation; other languages close theirs.
            end = [] if self.indented else [self.table["close"]]
            opening = self._fill("open", value=self._expression(node.test))
            return [opening, *(f" {line}" for line in inside), *end]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if isinstance(node.value, ast.Call):
                return [self._fill("read", name=name)]
            return [self._fill("set", name=name, value=self._expression(node.value))]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return [self._fill("print", value=self._expression(node.value.args[0]))]
        raise TypeError(f"a reference program has no {type(node).__name__}")

    def _expression(self, node: ast.expr, inner: bool = False) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name):
            return self._fill("name", name=node.id)
        if isinstance(node, ast.IfExp):
            test, yes, no = (self._expression(part) for part in (node.test, node.body, node.orelse))
            return self._fill("choose", test=test, yes=yes, no=no)
        if isinstance(node, ast.BoolOp):
            left, right = (self._expression(part) for part in node.values)
            return self._fill("both" if isinstance(node.op, ast.And) else "either", left=left, right=right)
        if isinstance(node, ast.Compare):
            left, right = self._expression(node.left, True), self._expression(node.comparators[0], True)
            return f"{left} {SYMBOLS[type(node.ops[0])]} {right}"
        if isinstance(node, ast.BinOp):
            left, right = self._expression(node.left, True), self._expression(node.right, True)
            if isinstance(node.op, ast.FloorDiv):
                return self._fill("divide", left=left, right=right)
            text = f"{left} {SYMBOLS[type(node.op)]} {right}"
            return f"({text})" if inner else text
        raise TypeError(f"a reference program has no {type(node).__name__}")

    def _fill(self, key: str, **parts: str) -> str:
        # One pass over the idiom, so that parts with braces are left unchanged.
        return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), self.table[key])
