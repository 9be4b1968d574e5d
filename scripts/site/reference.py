"""The site's reference, made from the code: commands, parts of algorithms, environments, recipes' settings, metrics."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.algo import registry
from asyncrl.algo.presets import known_presets
from asyncrl.cli import build_parser
from asyncrl.env.registry import ENVS, load_env
from asyncrl.extensions.curriculum.curricula import CURRICULA
from asyncrl.extensions.env_tools.commands import build_parser as env_parser
from asyncrl.import_path import load_object

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"[a-z_]+(/[a-z0-9_{}]+)+")
WIDTH = 94
"""Of help texts, in columns."""


def reference_pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    return {
        "docs/reference/commands.md": commands(),
        "docs/reference/parts.md": parts(),
        "docs/reference/environments.md": environments(),
        "docs/reference/metrics.md": metrics(),
    }


def commands() -> str:
    """Return what `--help` says of each command."""
    return page("Commands", "What `--help` says of each command.", *help_of(build_parser(), 2))


def help_of(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yield a section for a parser, and for those of its sub-commands."""
    parser.formatter_class = wide(parser.formatter_class)
    yield f"{'#' * level} {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                if inner.prog == "asyncrl env":
                    # The command hands its words on to a parser of its own.
                    inner = env_parser()
                yield from help_of(inner, min(level + 1, 3))


def wide(formatter: Any) -> Any:
    """Return a formatter whose lines do not depend on the terminal."""
    return lambda prog: formatter(prog, width=WIDTH)


def parts() -> str:
    """Return the presets and every function that a recipe may name in `[algo]` or `[curriculum]`."""
    rows = [
        [f"`{name}`", *(f"`{preset[part]['name']}`" for part in ("advantage", "loss", "aggregation"))]
        for name, preset in known_presets().items()
    ]
    sections = [
        f"## {kind}\n\n{table(('name', 'parameters', 'what'), function_rows(known))}"
        for kind, known in registry.parts().items()
    ]
    return page(
        "Names in `[algo]`",
        f"The {len(known_presets())} presets and the parts they are made of. [Presets](../algorithms/presets.md) has "
        "the rest of each preset.",
        f"## preset\n\n{table(('preset', 'advantage', 'loss', 'aggregation'), rows)}",
        *sections,
        f"## curriculum\n\n{table(('name', 'settings', 'what'), function_rows(CURRICULA))}",
    )


def function_rows(known: dict[str, str]) -> Iterator[list[str]]:
    for name, path in known.items():
        found = load_object(name, path)
        yield [f"`{name}`", parameters(found), first_sentence(found.__doc__)]


def parameters(function: Any) -> str:
    """Return the settings of a function or class: its keyword-only arguments with their defaults."""
    found = inspect.signature(function).parameters.values()
    shown = [
        f"`{one.name}`" if one.default is one.empty else f"`{one.name} = {one.default!r}`"
        for one in found
        if one.kind is one.KEYWORD_ONLY
    ]
    return ", ".join(shown) or "–"


def environments() -> str:
    """Return the registered environments with their settings."""
    rows = []
    for name in sorted(ENVS):
        found = load_env(name)
        settings = [
            one
            for one in inspect.signature(found.__init__).parameters.values()
            if one.name not in ("self", "task")
        ]
        shown = [
            f"`{one.name}`" if one.default is one.empty else f"`{one.name} = {one.default!r}`"
            for one in settings
            if one.kind is not one.VAR_KEYWORD
        ]
        rows.append([f"`{name}`", first_sentence(found.__doc__), ", ".join(shown) or "–"])
    return page(
        "Names in `[env]`",
        "What `env.name` may be, beside an [import path](../environments.md#a-new-environment), and the keys of "
        "`[env.config]`.",
        table(("name", "what", "settings"), rows),
    )


def metrics() -> str:
    """Return the metrics of a step, as `metrics.jsonl` names them, with the modules that measure them."""
    rows = set()
    for folder in ("asyncrl/algo", "asyncrl/extensions", "asyncrl/train"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            where, what = f"`{path.relative_to(ROOT)}`", first_sentence(ast.get_docstring(tree))
            rows |= {(f"`{name}`", where, what) for name in metric_names(tree)}
    return page(
        "Metrics",
        "The numbers of a step, as `metrics.jsonl` and the [sinks](../metrics.md) have them, and where each comes "
        "from. Which of them a run has depends on its objective; a word in braces stands for the name of a part.",
        table(("metric", "measured in", "which is about"), sorted(rows)),
    )


def metric_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names in a module that have the form of a metric, and are keys."""
    for node in ast.walk(tree):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        elif isinstance(node, ast.DictComp):
            keys = [node.key]
        for key in keys:
            name = ""
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                name = key.value
            elif isinstance(key, ast.JoinedStr):
                name = ast.unparse(key)[2:-1]
            if METRIC.fullmatch(name):
                yield name


def page(title: str, introduction: str, *sections: str) -> str:
    return "\n\n".join((f"# {title}", introduction, *sections)) + "\n"


def table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring, on one line."""
    whole = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\w{3})\.(?: |$)", whole, maxsplit=1)[0]
