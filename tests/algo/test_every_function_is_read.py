"""Every function of `asyncrl/algo` is reached from the product: none is there for its tests alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALGO = ROOT / "asyncrl" / "algo"
PRODUCT = ("asyncrl", "services", "envs", "recipes")


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


def unread(algo: dict[Path, ast.Module], elsewhere: set[str]) -> set[str]:
    """The functions and classes of `algo` that no name outside of them leads to; a class with its methods is one."""
    found: dict[str, set[str]] = {}
    read = set(elsewhere)
    for module in algo.values():
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, set()).update(names(node) - {node.name})
                if node.decorator_list:  # a formula is found by its mark, not by its name
                    read.add(node.name)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                read |= names(node)
    while more := {name for name in read & found.keys() if not found[name] <= read}:
        for name in more:
            read |= found[name]
    return found.keys() - read


def test_every_function_of_the_algorithms_is_reached_from_the_product() -> None:
    algo = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ALGO.rglob("*.py"))}
    elsewhere: set[str] = set()
    for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*")):
        if path.suffix == ".toml":
            elsewhere |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        elif path.suffix == ".py" and path not in algo:
            elsewhere |= names(ast.parse(path.read_text(encoding="utf-8")))
    assert sorted(unread(algo, elsewhere)) == []


def test_a_function_that_only_an_unread_one_calls_is_unread_as_well() -> None:
    module = ast.parse("def a():\n    return b()\ndef b():\n    return 1\ndef c():\n    return 1\n")
    assert unread({Path("x.py"): module}, {"c"}) == {"a", "b"}
    assert unread({Path("x.py"): module}, {"a"}) == {"c"}
