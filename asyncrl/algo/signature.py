"""Read a function's recipe parameters from its source text, without importing it (and so without torch)."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import Any

from asyncrl.algo.registry import did_you_mean, locate
from asyncrl.errors import ConfigError
from asyncrl.import_path import source_file


@dataclass(frozen=True, slots=True)
class Signature:
    """Keyword-only parameters with their annotations, those without a default, and the `@needs` words."""

    params: dict[str, ast.expr | None]
    required: frozenset[str]
    needs: tuple[str, ...]


def read(kind: str, name: str) -> Signature | None:
    """Signature of a registered name or import path; None when the module only re-exports the function."""
    module, function = locate(kind, name)
    definitions = _definitions(kind, module)
    if function not in definitions:
        raise ConfigError(
            f"algo.{kind}: module {module} has no function {function!r}{did_you_mean(function, definitions)}"
        )
    node = definitions[function]
    if node is None:
        return None
    args = node.args
    params = {arg.arg: arg.annotation for arg in args.kwonlyargs}
    required = {
        arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None
    }
    return Signature(params, frozenset(required), _needs(node))


@functools.cache
def _definitions(kind: str, module: str) -> dict[str, ast.FunctionDef | None]:
    """Top-level functions of a module, with None for names it binds in another way."""
    source = source_file(f"algo.{kind}", module)
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"algo.{kind}: {source} cannot be read: {error}") from error
    found: dict[str, ast.FunctionDef | None] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= dict.fromkeys(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.Assign):
            found |= {target.id: None for target in node.targets if isinstance(target, ast.Name)}
    return found


def _needs(node: ast.FunctionDef) -> tuple[str, ...]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "needs":
            return tuple(arg.value for arg in decorator.args if isinstance(arg, ast.Constant))  # type: ignore[misc]
    return ()


def accepts(annotation: ast.expr | None, value: Any) -> bool:
    """Whether a configured value fits an annotation.

    An annotation this does not understand accepts anything.
    """
    if annotation is None:
        return True
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return accepts(annotation.left, value) or accepts(annotation.right, value)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return value is None
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Literal":
        return value in literal_choices(annotation)
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    kind = getattr(base, "id", "")
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    expected = {"bool": bool, "str": str, "dict": dict, "list": list, "tuple": (list, tuple)}.get(kind)
    return expected is None or isinstance(value, expected)  # type: ignore[arg-type]


def literal_choices(annotation: ast.Subscript) -> list[Any]:
    """The values inside `Literal[...]`."""
    inner = annotation.slice
    elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    return [element.value for element in elements if isinstance(element, ast.Constant)]
