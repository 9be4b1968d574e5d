"""The pages on the code name files and functions that exist, all folders, the tested layers, and true counts."""

import ast
import difflib
import re
from pathlib import Path

import pytest

from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
PAGE = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("architecture", "ways", "transports")
)
SPAN = re.compile(r"`((?:asyncrl|services|envs|recipes|tests|scripts)/[\w./-]*)(?::([\w.]+))?`")
NAMED = sorted(set(SPAN.findall(PAGE)))
MOST_FILES = {"The way of a task": 18, "The way of a sampled token": 22}


def names(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return the functions, classes, methods and assigned names of a module, methods as `Class.method`."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names(node.body, f"{prefix}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


def section(title: str) -> str:
    """Return the text below the heading that begins with `title`, the heading included."""
    parts = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)
    (found,) = [part for part in parts if part.startswith(f"## {title}")]
    return found


def first_cells(title: str) -> list[list[str]]:
    """Return what the rows of a section's table name in inline code, cell by cell."""
    rows = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [re.findall(r"`([^`]+)`", row) for row in rows[2:]]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{p}:{n}" if n else p for p, n in NAMED])
def test_everything_that_the_page_names_exists(path: str, name: str):
    where = ROOT / path
    assert where.exists(), f"the pages name {path}, which is not there"
    if name:
        known = names(ast.parse(where.read_text()).body)
        alike = difflib.get_close_matches(name, known, 5, 0.4)
        assert name in known, f"the pages name {path}:{name}; the file has {alike}"


def test_every_folder_is_in_the_table_of_folders():
    listed = {cells[0] for cells in first_cells("Folders")}
    packages = {
        f"{top}/{path.parent.name}/"
        for top in ("asyncrl", "services")
        for path in (ROOT / top).glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    assert listed == packages | {"envs/", "recipes/", "scripts/"}


def test_the_table_of_layers_is_the_tested_one():
    listed = [set(cells) for cells in first_cells("Layers")]
    assert listed == [set(layer) for layer in reversed(LAYERS)]


@pytest.mark.parametrize("title", MOST_FILES)
def test_a_way_goes_through_as_many_files_as_its_heading_says(title: str):
    text = section(title)
    # What branches off below a heading of its own is not the way itself.
    way = text.split("\n### ")[0]
    said = re.match(r"## .*\((\d+) files\)", text)
    assert said is not None
    assert len({path for path, _ in SPAN.findall(way)}) == int(said[1]) <= MOST_FILES[title]
