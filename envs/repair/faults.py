"""Puts faults into source text by changing one expression, as in a typical slip."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
}
COMPUTED: dict[type[ast.operator], list[type[ast.operator]]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add],
    ast.FloorDiv: [ast.Mod],
    ast.Mod: [ast.FloorDiv],
}
SWAPPED = {"min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A position in a source text and its replacement. Offsets count characters."""

    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def faults(source: str, function: str) -> list[Fault]:
    """Return every fault that can be put into the function's statements, in order of its place."""
    tree = ast.parse(source)
    body = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    found = {}
    for node in ast.walk(body):
        for changed in _changes(node):
            fault = _place(source, node, changed)
            if fault is not None:
                found[fault.start, fault.end, fault.text] = fault
    return [found[key] for key in sorted(found)]


def function_text(source: str, function: str) -> str:
    """Return the text of one function."""
    node = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function)
    return (ast.get_source_segment(source, node) or "") + "\n"


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield wrong versions of an expression."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARED.get(type(op), []):
                yield _changed(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for wrong in COMPUTED.get(type(node.op), []):
            yield _changed(node, op=wrong())
    elif isinstance(node, ast.BoolOp):
        yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
        yield _changed(node, func=ast.Name(SWAPPED[node.func.id]))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    """Return a copy of the node with other fields."""
    copied = copy.copy(node)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def _place(source: str, node: ast.AST, changed: ast.AST) -> Fault | None:
    """Return the fault that replaces `node` by `changed`; None if that is not Python or no change."""
    if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None or node.end_col_offset is None:
        return None
    lengths = [len(line) for line in source.splitlines(keepends=True)]
    start = sum(lengths[: node.lineno - 1]) + node.col_offset
    end = sum(lengths[: node.end_lineno - 1]) + node.end_col_offset
    fault = Fault(start, end, ast.unparse(changed))
    after = fault.apply(source)
    return fault if after != source and _parses(after) else None


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
