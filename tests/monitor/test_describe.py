"""One run in words and numbers, and several in what sets them apart."""

import json
import sqlite3

import pytest

from asyncrl.buffer.integrity import add_functions
from asyncrl.errors import InputError
from asyncrl.monitor.describe import describe_run, differing_settings
from asyncrl.monitor.evaluations import evaluations
from asyncrl.monitor.logs import read_log
from asyncrl.monitor.runs import read_config
from asyncrl.monitor.tokens import TokenTexts
from tests.monitor.folders import EVALUATION, make_run


def test_evaluations_are_in_order_and_prefer_the_verdict_of_the_environment(tmp_path):
    folder = make_run(tmp_path / "run")
    no_verdict = EVALUATION | {"success": None, "success_ci": None}
    lines = [
        {"version": 5, "wall_s": 1.0, **no_verdict},
        {"version": 6, "wall_s": 1.0, "error": "engine died"},
    ]
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [
        (one["version"], one["when"], one["what"], one["mean"], one["ci_low"]) for one in evaluations(folder)
    ]
    assert found == [(0, "before", "success", 0.5, 0.4), (5, "during", "reward", 0.4, 0.3)]


def test_the_ledger_tells_groups_by_state_and_failures_with_their_first_error(tmp_path):
    folder = make_run(tmp_path / "run")
    with sqlite3.connect(folder / "ledger.sqlite") as database:
        add_functions(database)
        database.execute("INSERT INTO failures VALUES ('environment', 3, 1, 'first traceback', 'newest')")
        database.execute("UPDATE tasks SET state = 'dropped', reason = 'no signal' WHERE seq = 1")
    ledger = describe_run("run", folder)["ledger"]
    assert ledger["failures"] == [
        {"failure": "environment", "episodes": 3, "groups": 1, "first": "first traceback", "newest": "newest"}
    ]
    assert ledger["dropped"] == [{"reason": "no signal", "groups": 1}]
    assert {row["state"]: row["groups"] for row in ledger["groups"]} == {"pending": 1, "dropped": 1}


def test_a_run_without_a_ledger_or_with_a_damaged_one_is_described(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "ledger.sqlite").write_bytes(b"no database" * 100)
    assert describe_run("run", folder)["ledger"]["failures"] == []
    (folder / "ledger.sqlite").unlink()
    assert describe_run("run", folder)["ledger"]["groups"] == []


def test_logs_are_read_by_their_own_names_only(tmp_path):
    folder = make_run(tmp_path / "run")
    assert describe_run("run", folder)["logs"] == [{"name": "engine-0", "bytes": 18}]
    assert read_log(folder, "engine-0") == "the engine serves\n"
    with pytest.raises(InputError, match="no log"):
        read_log(folder, "../config")


def test_settings_that_differ_are_told_by_key(tmp_path):
    one = read_config(make_run(tmp_path / "one"))
    other = read_config(make_run(tmp_path / "two", overrides=("train.learning_rate=0.25",)))
    old = {"train": {"learning_rate": 0.25}}
    rows = differing_settings({"one": one, "two": other})
    assert rows == [
        {"key": "train.learning_rate", "values": {"one": one["train"]["learning_rate"], "two": 0.25}}
    ]
    assert {"key": "env.name", "values": {"one": "gridworld", "old": None}} in differing_settings(
        {"one": one, "old": old}
    )


def test_tokens_are_texts_where_there_is_a_tokenizer_and_numbers_where_there_is_none(tmp_path):
    folder = make_run(tmp_path / "run")
    assert TokenTexts(folder).texts([246, 1]) == ["north", "word1"]
    bare = make_run(tmp_path / "bare")
    next(bare.glob("checkpoints/*/tokenizer.json")).unlink()
    assert TokenTexts(bare).texts([246]) == ["⟨246⟩"]
