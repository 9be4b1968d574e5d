"""What people try first with rows and rewards of their own, from the installed package in a folder of theirs.

What is wrong is refused before any process starts, and the message says what to do.
"""

from __future__ import annotations

import json

import datasets
import pytest

from tests.docs.installed import Installed, install

RECIPE = """
base = "tiny_cpu"
[data]
train = "rows.jsonl"
reward = "math"
"""
REWARD = """
def near(completion, answer):
    return float(answer in completion)
def other(completion, gold):
    return 1.0
"""


@pytest.fixture(scope="module")
def installed() -> Installed:
    return install()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a recipe, a reward, and rows in many forms."""
    found = tmp_path_factory.mktemp("mine")
    rows = [{"question": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(20)]
    written = {
        "rows.jsonl": rows,
        "test.jsonl": rows[15:],
        "other.jsonl": [{"question": f"What is {n} - 2?", "answer": str(n - 2)} for n in range(5)],
        "gold.jsonl": [{"question": row["question"], "gold": row["answer"]} for row in rows],
        "hole.jsonl": [*rows[:6], {"question": "What is 1?"}],
        "nested.jsonl": [{"problem": {"text": row["question"]}, "answer": row["answer"]} for row in rows],
    }
    for name, lines in written.items():
        (found / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found / "excel.csv").write_bytes("question,answer\nGröße 1?,1\nGröße 2?,2\n".encode("latin-1"))
    splits = {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows).select([])}
    datasets.DatasetDict(splits).save_to_disk(str(found / "saved"))
    (found / "mine.toml").write_text(RECIPE)
    (found / "my.py").write_text(REWARD)
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.prompt={problem}"], "has no column 'problem'; there are: question, answer"),
        (
            ["data.train=hole.jsonl"],
            "hole.jsonl, line 7: column 'answer' is missing; expected: a value in each",
        ),
        (["data.train=saved", "data.heldout=saved"], "saved/test: holds no row"),
        (["data.heldout=test.jsonl"], "5 training rows have the prompt of a held-out row: "),
        (["data.heldout=rows.jsonl"], "leave data.heldout out, and data.heldout_share of them is held out"),
        (["data.train=gold.jsonl"], "data.answer names the column with the right answer"),
        (["data.train=nested.jsonl"], 'name a field of it by data.prompt="{problem.text}"'),
        (["data.train=excel.csv"], "is not UTF-8: line 2, near 'Größe 1?,1'; save it as UTF-8"),
        (["data.train=rows.jsonl,other.jsonl"], 'several are a list, ["a.jsonl", "b.jsonl"], or a pattern'),
        (
            ['data.train=[{path="rows.jsonl",wieght=2.0}]'],
            "data.train.0.wieght: unknown key; did you mean 'weight'?",
        ),
        (["data.reward=my.py"], "a function in a file is FILE.py:FUNCTION, such as my.py:near"),
        (["data.reward=my.py:naer"], "did you mean 'near'?"),
        (["data.reward=my.py:other"], "its parameter 'gold' is no column; the row has question, answer"),
        (["data.reward=5"], "data.reward: must be a text or a list, got 5"),
    ],
)
def test_a_wrong_first_attempt_is_told_what_to_do_before_anything_starts(installed, folder, words, message):
    done = installed.run(["asyncrl", "train", "mine.toml", *words], folder)
    assert done.returncode == 2, done.stdout
    assert message in done.stdout
    assert "Traceback" not in done.stdout
    assert not (folder / "runs").exists()
