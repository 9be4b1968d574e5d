"""The page of what is tested without a GPU names tests that are there, and pages say the same of the GPU that was."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "without-a-gpu.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")


def named():
    """Yield the file and the function of each test that the page names; `::test` is in the file named last."""
    file = ""
    for own, function in NAMED.findall(PAGE.read_text()):
        file = own or file
        if function:
            yield file, function


def rows():
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]


def test_every_test_that_the_page_names_is_there():
    functions = {}
    missing = []
    for file, function in named():
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text())
            functions[file] = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
        if function not in functions[file]:
            missing.append(f"{file}::{function}")
    assert missing == []
    assert len(list(named())) > 45


def test_every_row_names_a_test():
    assert [row for row in rows() if "::test_" not in row and not row.startswith("| what |")] == []


@pytest.mark.parametrize(
    "page", ["README.md", "docs/limits.md", "docs/tutorial/6-gpu.md", "docs/without-a-gpu.md"]
)
def test_pages_say_the_same_of_how_long_a_gpu_was_there(page):
    text = " ".join((ROOT / page).read_text().split())
    assert "H200" in text and "fifteen minutes" in text
    assert (
        "twice on 2026-11-27, for ten minutes and for five" in (ROOT / "docs" / "performance.md").read_text()
    )


def test_pages_say_the_same_of_the_memory_that_a_gpu_took():
    results = (ROOT / "docs" / "performance.md").read_text()
    predicted, measured, ratio = re.search(
        r"predicted ([\d.]+) GiB, measured ([\d.]+) GiB, ratio ([\d.]+)", results
    ).groups()
    assert float(predicted) / float(measured) == pytest.approx(float(ratio), abs=0.001)
    memory = " ".join((ROOT / "docs" / "memory.md").read_text().split())
    assert f"{measured} GiB of an H200, and {predicted} were predicted" in memory
    assert "agree with one real step within 5 %" in (ROOT / "README.md").read_text()
    assert float(ratio) - 1 < 0.055


def test_no_page_says_that_nothing_was_run_on_a_gpu():
    said = "[Nn]o prediction has been compared|never (?:been )?run on a GPU|has met a GPU"
    found = {
        page.name: match.group()
        for page in (ROOT / "docs").glob("*.md")
        if (match := re.search(said, page.read_text()))
    }
    assert found == {}
