"""Every function of the product is reached from a command, a service or a file of settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("asyncrl", "services", "envs")
BESIDE = ("recipes", "scripts")
"""What reads the product without being a part of it."""
SETTINGS = {".toml", ".json", ".sh"}


def names(*nodes: ast.AST) -> set[str]:
    """Variables and attributes that this code names, and the words of strings that are a path of names."""
    found: set[str] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.:]+", str(node.value)):
            found |= set(re.split(r"[.:]", str(node.value)))
    return found


def unread(product: dict[Path, ast.Module], elsewhere: set[str]) -> set[str]:
    """The functions and classes of `product` that no name outside of them leads to; a class with its methods is one."""
    found: dict[str, set[str]] = {}
    read = set(elsewhere)
    for module in product.values():
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(node.name, set()).update(names(node) - {node.name})
                if node.decorator_list:  # a formula or a route is found by its mark, not by its name
                    read.add(node.name)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                read |= names(node)
    while more := {name for name in read & found.keys() if not found[name] <= read}:
        for name in more:
            read |= found[name]
    return found.keys() - read


def files(*folders: str) -> Iterator[Path]:
    """The files of these folders, each by one name."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.resolve() == path:
                yield path


def modules(*folders: str) -> dict[Path, ast.Module]:
    return {p: ast.parse(p.read_text(encoding="utf-8")) for p in files(*folders) if p.suffix == ".py"}


def test_every_function_of_the_product_is_reached() -> None:
    elsewhere = names(*modules(*BESIDE).values())
    for path in (*files(*PRODUCT, *BESIDE), ROOT / "pyproject.toml"):
        if path.suffix in SETTINGS:
            elsewhere |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    product = modules(*PRODUCT)
    assert len(product) > 500
    assert sorted(unread(product, elsewhere)) == []


def test_a_function_that_only_an_unread_one_calls_is_unread_as_well() -> None:
    module = ast.parse("def a():\n    return b()\ndef b():\n    return 1\ndef c():\n    return 1\n")
    assert unread({Path("x.py"): module}, {"c"}) == {"a", "b"}
    assert unread({Path("x.py"): module}, {"a"}) == {"c"}
