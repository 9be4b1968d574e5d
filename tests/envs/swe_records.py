"""Repositories with issues, as git bundles, and their records in the forms of SWE-bench and SWE-smith."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import zipfile
from importlib import metadata
from pathlib import Path

INSTALL = "python3 -m pip install -q --no-index --find-links .wheels --break-system-packages pytest"
SHAPES = """def area(shape, *sizes):
    if shape == "square":
        return sizes[0] * 4
    if shape == "circle":
        return 3 * sizes[0] ** 2
    raise ValueError(shape)


def perimeter(shape, *sizes):
    return sizes[0] * 4
"""
WORDS = """def title(text):
    return text.title()


def initials(text):
    return "".join(word[0] for word in text.split(" "))


def count(text):
    return len(text.split(" "))
"""
TEST_SHAPES = """import pytest
from lib.shapes import area, perimeter


def test_perimeter():
    assert perimeter("square", 3) == 12


def test_circle():
    assert area("circle", 2) == 12


def test_unknown():
    with pytest.raises(ValueError):
        area("star")
"""
TEST_WORDS = """import pytest
from lib.words import count, initials, title


def test_title():
    assert title("a tale") == "A Tale"


@pytest.mark.parametrize(("text", "found"), [("a b", 2), ("one", 1)])
def test_count(text, found):
    assert count(text) == found
"""
MORE_SHAPES = (
    TEST_SHAPES
    + """

def test_square():
    assert area("square", 3) == 9
"""
)
MORE_WORDS = (
    TEST_WORDS
    + """

@pytest.mark.parametrize("text", ["a  b", " a b"])
def test_spaces(text):
    assert initials(text) == "ab"


def test_count_of_spaces():
    assert count("a  b") == 2
"""
)
NEW_TESTS = """from lib.words import title


def test_apostrophe():
    assert title("it's") == "It's"
"""
FLAKY = """import random
from lib.shapes import area


def test_square():
    assert area("square", 3) == 9


def test_nothing():
    assert True


""" + "\n\n".join(f"def test_luck_{n}():\n    assert random.random() < 0.5\n" for n in range(6))


def wheels(folder: Path) -> None:
    """Write pytest, as this interpreter has it, and what it needs as wheels into `folder`."""
    folder.mkdir(parents=True)
    wanted, done = ["pytest"], set()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        found = metadata.distribution(name)
        needs = [line for line in found.requires or () if ";" not in line]
        wanted += [re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in needs]
        _wheel(found, folder)


def _wheel(found: metadata.Distribution, folder: Path) -> None:
    stem = f"{found.metadata['Name'].replace('-', '_')}-{found.version}"
    record = []
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as packed:
        for file in found.files or ():
            if file.parts[0] == ".." or file.suffix == ".pyc" or file.name in ("RECORD", "direct_url.json"):
                continue
            data = Path(str(file.locate())).read_bytes()
            packed.writestr(str(file), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(data)}")
        info = next(f.parts[0] for f in found.files or () if f.parts[0].endswith(".dist-info"))
        packed.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True, env=env
    ).stdout


class Repository:
    """A repository whose commits are an issue's start, its repair with tests, and the next issue's start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheels(folder / ".wheels")
        git(folder, "init", "-qb", "main")
        self.start = self.commit(
            {"lib/__init__.py": "", "lib/shapes.py": SHAPES, "lib/words.py": WORDS, ".gitignore": "*.pyc\n",
             "tests/test_shapes.py": TEST_SHAPES, "tests/test_words.py": TEST_WORDS,
             "conftest.py": "import sys\nsys.path.insert(0, '.')\n"},
        )  # fmt: skip

    def commit(self, files: dict[str, str]) -> str:
        for path, text in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "commit")
        return git(self.folder, "rev-parse", "HEAD").strip()

    def diff(self, files: dict[str, str]) -> str:
        """Return the patch from the start to these files."""
        git(self.folder, "checkout", "-q", "-f", self.start)
        return git(self.folder, "diff", self.start, self.commit(files))

    def record(self, name: str, issue: str, repair: dict[str, str], tests: dict[str, str], **more) -> dict:
        return {
            "instance_id": name, "repo": "own/lib", "base_commit": self.start, "problem_statement": issue,
            "patch": self.diff(repair), "test_patch": self.diff(tests), "version": "1",
            "install_config": {"install": INSTALL, "log_parser": "parse_log_pytest"}, **more,
        }  # fmt: skip


def fixed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


SQUARE = fixed(SHAPES, "        return sizes[0] * 4\n    if", "        return sizes[0] ** 2\n    if")
SPACES = fixed(WORDS, 'text.split(" "))\n\n\ndef count', "text.split())\n\n\ndef count")
COUNT = fixed(SPACES, 'len(text.split(" "))', "len(text.split())")
TITLE = fixed(WORDS, "text.title()", '" ".join(w.capitalize() for w in text.split(" "))')
PER = "tests/test_shapes.py::test_perimeter"
KEPT_SHAPES = [PER, "tests/test_shapes.py::test_circle", "tests/test_shapes.py::test_unknown"]
KEPT_WORDS = [
    "tests/test_words.py::test_title",
    "tests/test_words.py::test_count[a b-2]",
    "tests/test_words.py::test_count[one-1]",
]


def write_records(folder: Path) -> Path:
    """Write a bundle and five records, and one whose tests are flaky, and return the file of the five."""
    place = folder / "lib"
    place.mkdir(parents=True)
    repository = Repository(place)
    shapes, words = {"tests/test_shapes.py": MORE_SHAPES}, {"tests/test_words.py": MORE_WORDS}
    records = [
        repository.record(
            "own__lib-1", "The area of a square is wrong.", {"lib/shapes.py": SQUARE}, shapes,
            FAIL_TO_PASS=json.dumps(["tests/test_shapes.py::test_square"]), PASS_TO_PASS=json.dumps(KEPT_SHAPES),
        ),
        repository.record(
            "own__lib-2", "Two spaces break initials and count.", {"lib/words.py": COUNT}, words,
            FAIL_TO_PASS=["tests/test_words.py::test_spaces[a", "tests/test_words.py::test_count_of_spaces"],
            PASS_TO_PASS=[KEPT_WORDS[0], "tests/test_words.py::test_count[one-1]"],
        ),
        repository.record(
            "own__lib-3", "title is wrong after an apostrophe.", {"lib/words.py": TITLE},
            {"tests/test_title.py": NEW_TESTS},
            FAIL_TO_PASS=["tests/test_title.py::test_apostrophe"], PASS_TO_PASS=[],
        ),
        repository.record(
            "own__lib-4", "Squares again; perimeters must stay.",
            {"lib/shapes.py": SQUARE, "lib/words.py": COUNT}, shapes | words,
            FAIL_TO_PASS=["tests/test_shapes.py::test_square", "tests/test_words.py::test_count_of_spaces"],
            PASS_TO_PASS=[*KEPT_SHAPES, KEPT_WORDS[0]],
        ),
    ]  # fmt: skip
    fault = {
        "lib/shapes.py": fixed(
            SHAPES,
            "def perimeter(shape, *sizes):\n    return sizes[0] * 4",
            "def perimeter(shape, *sizes):\n    return sizes[0] * 3",
        )
    }
    records.append(
        {
            "instance_id": "own__lib-smith", "repo": "own/lib", "bundle": "own__lib.bundle",
            "problem_statement": "Perimeters are too small.", "patch": repository.diff(fault),
            "FAIL_TO_PASS": [PER], "PASS_TO_PASS": KEPT_SHAPES[1:],
            "install_config": {"install": INSTALL},
        }
    )  # fmt: skip
    luck = [f"tests/test_luck.py::test_luck_{n}" for n in range(6)]
    flaky = repository.record(
        "own__lib-flaky", "Luck.", {"lib/shapes.py": SQUARE}, {"tests/test_luck.py": FLAKY},
        FAIL_TO_PASS=["tests/test_luck.py::test_square", *luck], PASS_TO_PASS=["tests/test_luck.py::test_nothing"],
    )  # fmt: skip
    wrong = repository.record(
        "own__lib-wrong", "Nothing.", {"lib/shapes.py": SQUARE}, shapes,
        FAIL_TO_PASS=[PER, "tests/test_shapes.py::test_square"], PASS_TO_PASS=["tests/test_shapes.py::test_gone"],
    )  # fmt: skip
    git(place, "checkout", "-q", "-f", "main")
    # The bundle holds the repairs, too, as that of a real repository does.
    for number, commit in enumerate(git(place, "log", "--all", "--reflog", "--format=%H").split()):
        git(place, "branch", "-f", f"later-{number}", commit)
    git(place, "bundle", "create", "-q", str(folder / "own__lib.bundle"), "--all")
    for name, rows in (("records.jsonl", records), ("faulty.jsonl", [flaky, wrong])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "records.jsonl"
