"""What scripts and recipes import of ours is there: most of them are started by nobody but people."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for folder in ("scripts", "recipes") for path in (ROOT / folder).rglob("*.py"))
OURS = ("asyncrl", "scripts", "tests")


def source(module):
    """The file of a module of ours, None without one."""
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


@functools.cache
def names(file):
    """What a module binds: at its top level, or below a condition there."""
    found = set()
    nodes = list(ast.parse(file.read_bytes()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            nodes += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
        else:
            found |= {
                one.id
                for one in ast.walk(node)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    return found


def missing(script):
    """Yield what a script imports, anywhere in it, that is not there."""
    for node in ast.walk(ast.parse(script.read_bytes())):
        if not isinstance(node, ast.ImportFrom) or str(node.module).partition(".")[0] not in OURS:
            continue
        package, file = ROOT.joinpath(*node.module.split(".")), source(node.module)
        if file is None and not package.is_dir():
            yield node.module
            continue
        bound = names(file) if file is not None else set()
        yield from (
            f"{node.module}.{one.name}"
            for one in node.names
            if one.name not in bound and source(f"{node.module}.{one.name}") is None
        )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script):
    assert list(missing(script)) == []


def test_what_is_not_there_is_found(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from asyncrl.weights.chunks import DELTA, WHOLE\nfrom asyncrl.no_such import a\n"
        "from asyncrl.train import loop, no_room\n"
    )
    assert list(missing(script)) == [
        "asyncrl.weights.chunks.DELTA",
        "asyncrl.no_such",
        "asyncrl.train.no_room",
    ]
