"""A large source is looked at once for all that ask the same of it, and again where anything differs that counts."""

import json
import os
import pathlib

import pytest

from asyncrl.cache import PACKAGE
from asyncrl.config_sections import DataConfig
from asyncrl.errors import InputError
from asyncrl.extensions import table
from asyncrl.import_path import load_object
from asyncrl.rewards.golds import gold_check
from asyncrl.rows import data, scan, scan_cache
from asyncrl.rows.data import open_data
from tests.extensions.vision.test_pictures import png, uri

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1), "hint": "count"} for n in range(20)]


@pytest.fixture
def looked(monkeypatch, tmp_path):
    """The rows that have been looked at, of sources that all count as large; the cache is empty."""
    found = []

    def prompt_text(row):
        found.append(row)
        return whole(row)

    whole = scan.prompt_text
    monkeypatch.setattr(scan, "prompt_text", prompt_text)
    monkeypatch.setattr(scan_cache, "LEAST_ROWS", 2)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return found


def write(folder, rows=ROWS, name="rows.jsonl"):
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def opened(file, **settings):
    """Open rows as another process would: nothing is known of earlier calls but what the cache has."""
    data._opened.cache_clear()
    config = DataConfig.model_validate({"train": file, "heldout_share": 0.2, "reward": "math", **settings})
    return open_data(config, golds=gold_check)


def shape(found):
    return [[task.id for task in found.epoch(0, "e", split)] for split in ("train", "heldout")], found.digest


def test_a_second_process_finds_the_same_rows_without_a_look(looked, tmp_path):
    file = write(tmp_path)
    first = shape(opened(file))
    assert len(looked) == 20
    assert shape(opened(file)) == first
    assert len(looked) == 20


@pytest.mark.parametrize("later", [{"seed": 5}, {"limit": 3}, {"dedupe": True}, {"heldout_share": 0.5}])
def test_what_decides_when_all_rows_are_known_asks_for_no_look(looked, tmp_path, later):
    file = write(tmp_path)
    opened(file)
    opened(file, **later)
    assert len(looked) == 20


@pytest.mark.parametrize("other", [{"prompt": "{hint}: {question}"}, {"answer": "hint"}, {"reward": "exact"}])
def test_what_decides_about_single_rows_asks_for_another_look(looked, tmp_path, other):
    file = write(tmp_path)
    opened(file)
    opened(file, **other)
    assert len(looked) == 40


def test_a_file_that_has_changed_is_looked_at_again(looked, tmp_path):
    opened(write(tmp_path))
    more = [*ROWS, {"question": "What is more?", "answer": "7", "hint": ""}]
    found = opened(write(tmp_path, more))
    assert found.size("train") + found.size("heldout") == 21
    assert len(looked) == 41


def test_other_code_that_reads_rows_looks_again(looked, tmp_path, monkeypatch):
    file = write(tmp_path)
    opened(file)
    monkeypatch.setattr(scan_cache, "_code", lambda: "of another day")
    opened(file)
    assert len(looked) == 40


def test_the_code_of_extensions_that_read_show_or_judge_rows_decides_too(monkeypatch):
    asked = []
    monkeypatch.setattr(scan_cache, "code_digest", lambda *names: asked.extend(names) or "digest")
    assert scan_cache._code() == "digest"
    loaded = [load_object(seam, row.path) for seam in scan_cache.SEAMS for row in table.rows(seam)]
    folders = {one.__module__.split(".")[2] for one in loaded}
    assert folders == {"answer_rewards", "benchmarks", "instruction_rewards", "program_rewards", "vision"}
    assert {"rows", "rewards", *(f"extensions/{name}" for name in folders)} <= {*asked}
    assert all((PACKAGE / name).exists() for name in asked)


def test_rows_that_no_answer_can_match_stay_left_out_with_the_reason(looked, tmp_path):
    file = write(tmp_path, [*ROWS, {"question": "Which?", "answer": "", "hint": ""}])
    first, again = opened(file), opened(file)
    assert first.notes == again.notes
    assert any("rows.jsonl, line 21" in note for note in again.notes)
    assert len(looked) == 21


def test_a_row_that_cannot_be_read_is_refused_every_time(looked, tmp_path):
    file = write(tmp_path, [*ROWS, {"question": 7, "answer": "8"}])
    for _ in range(2):
        with pytest.raises(InputError, match="line 21"):
            opened(file)


def test_files_that_rows_name_and_a_users_own_reward_are_looked_at_every_time(looked, tmp_path, monkeypatch):
    image = {"type": "image", "image": uri(png())}
    parts = [[{"type": "text", "text": f"{n}?"}, image] for n in range(4)]
    talks = [{"messages": [{"role": "user", "content": part}], "answer": "4"} for part in parts]
    file = write(tmp_path, talks, "talks.jsonl")
    opened(file)
    opened(file)
    assert len(looked) == 8
    (tmp_path / "mine.py").write_text("def f(completion, **row):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path)
    opened(file, reward="mine.py:f")
    opened(file, reward="mine.py:f")
    assert len(looked) == 48


@pytest.mark.parametrize("reward", [[{"name": "math", "weight": 0.5}, "exact"], r"regex:-?\d+"])
def test_rewards_of_several_parts_and_patterns_are_no_code_of_the_users(looked, tmp_path, reward):
    file = write(tmp_path)
    opened(file, reward=reward)
    opened(file, reward=reward)
    assert len(looked) == 20


def test_small_sources_leave_nothing_in_the_cache(looked, tmp_path, monkeypatch):
    monkeypatch.setattr(scan_cache, "LEAST_ROWS", 21)
    opened(write(tmp_path))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"no archive at all"])
def test_a_damaged_file_of_the_cache_is_made_again(looked, tmp_path, content):
    file = write(tmp_path)
    first = shape(opened(file))
    (kept,) = (tmp_path / "cache" / "rows").iterdir()
    kept.write_bytes(content)
    assert shape(opened(file)) == first == shape(opened(file))
    assert len(looked) == 40


def test_a_cache_that_cannot_be_written_is_done_without(looked, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    file = write(tmp_path)
    assert shape(opened(file)) == shape(opened(file))


def test_the_looks_that_were_used_longest_ago_go_first(looked, tmp_path, monkeypatch):
    monkeypatch.setattr(scan_cache, "KEPT", 2)
    file, folder = write(tmp_path), tmp_path / "cache" / "rows"
    names = []
    for number, prompt in enumerate(("{question}", "{hint} {question}", "{question} {hint}")):
        opened(file, prompt=prompt)
        (new,) = {path.name for path in folder.iterdir()} - set(names)
        names.append(new)
        os.utime(folder / new, (number + 1.0, number + 1.0))
        if number == 1:
            opened(file, prompt="{question}")
    assert {path.name for path in pathlib.Path(folder).iterdir()} == {names[0], names[2]}
