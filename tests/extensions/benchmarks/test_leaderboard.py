"""Evaluations of several folders on one page, on numbers worked out by hand."""

import json

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.leaderboard import leaderboard, read_columns
from tests.extensions.benchmarks.test_results import samples

TASKS = 12


def suite(parts, **more):
    return (
        {"name": "walks", "version": 1, "description": "", "samples": 1, "temperature": 1.0}
        | more
        | {"parts": parts}
    )


def known(name, file="/a/x.jsonl"):
    return {"set": name, "file": file, "env": "asyncrl.envs.rows:Rows", "tasks": 0}


def write(folder, given, outcomes, fingerprint="1", tasks=TASKS):
    """An evaluation's folder. outcomes: of each checkpoint and part, whether its tasks were right."""
    folder.mkdir(parents=True)
    listed = {part: [[f"{part}-t{n}", n, "heldout", {}] for n in range(tasks)] for part in given["parts"]}
    checkpoints = {name: {"files": fingerprint} for name, _ in outcomes}
    (folder / "evaluation.json").write_text(
        json.dumps({"suite": given, "tasks": listed, "checkpoints": checkpoints})
    )
    rows = [
        row
        for (name, part), right in outcomes.items()
        for row in samples(name, [[int(one)] for one in right], part=part)
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_evaluations_of_one_suite_in_two_folders_are_one_column(tmp_path):
    given = suite({"walk": {"env": "gridworld"}})
    write(tmp_path / "a", given, {("old", "walk"): [1] * 9 + [0] * 3})
    write(tmp_path / "deep" / "b", given, {("new", "walk"): [1] * 3 + [0] * 9})
    board = leaderboard(read_columns(tmp_path))
    assert board["columns"] == ["walks"]
    assert board["against"] == "old"
    scores = {name: one["walks"]["score"]["mean"] for name, one in board["checkpoints"].items()}
    assert scores == {"old": 0.75, "new": 0.25}
    (lost,) = board["regressions"]
    # Six tasks of one sign: the permutation test has p = 2 / 2^6.
    assert (lost["second"], lost["difference"], lost["worse"], lost["better"]) == ("new", -0.5, 6, 0)
    assert lost["p_value"] == pytest.approx(2 / 2**6)
    assert [one["task"] for one in lost["regressions"]] == [f"walk-t{n}" for n in range(3, 9)]


def test_a_loss_that_many_differences_make_likely_is_no_regression(tmp_path):
    parts = {"walk": {"env": "gridworld"}}
    for number in range(3):
        given = suite(parts, name=f"s{number}")
        right = [1] * 6 + [0] * 6 if number == 0 else [1] * 12
        write(tmp_path / f"e{number}", given, {("old", "walk"): [1] * 12, ("new", "walk"): right})
    board = leaderboard(read_columns(tmp_path))
    first = board["differences"][0]
    assert first["p_value"] == pytest.approx(2 / 2**6)
    assert first["p_holm"] == pytest.approx(3 * 2 / 2**6)
    assert board["regressions"] == []


def test_data_sets_are_columns_of_their_own_whatever_was_played_beside_them(tmp_path):
    both = suite({"gsm8k": known("gsm8k"), "svamp": known("svamp")}, name="gsm8k_svamp")
    alone = suite({"svamp": known("svamp", "/elsewhere/svamp.jsonl")}, name="svamp")
    write(tmp_path / "a", both, {("old", "gsm8k"): [0] * 12, ("old", "svamp"): [1] * 12})
    write(tmp_path / "b", alone, {("new", "svamp"): [1] * 12})
    board = leaderboard(read_columns(tmp_path))
    assert board["columns"] == ["gsm8k", "svamp"]
    assert set(board["checkpoints"]["new"]) == {"svamp"}
    assert [(one["second"], one["column"], one["difference"]) for one in board["differences"]] == [
        ("new", "svamp", 0.0)
    ]


def test_other_sampling_or_other_tasks_are_another_column(tmp_path):
    parts = {"svamp": known("svamp")}
    write(tmp_path / "a", suite(parts), {("old", "svamp"): [1] * 12})
    write(tmp_path / "b", suite(parts, temperature=0.0), {("old", "svamp"): [1] * 12})
    write(tmp_path / "c", suite(parts), {("old", "svamp"): [1] * 6}, tasks=6)
    columns = read_columns(tmp_path)
    assert [column.name for column in columns] == [f"svamp ({tmp_path / one})" for one in "abc"]


def test_two_checkpoints_of_one_name_are_told_apart(tmp_path):
    given = suite({"walk": {"env": "gridworld"}})
    write(tmp_path / "a", given, {("model", "walk"): [1] * 12})
    write(tmp_path / "b", given, {("model", "walk"): [0] * 12}, fingerprint="2")
    board = leaderboard(read_columns(tmp_path))
    assert list(board["checkpoints"]) == ["model", f"model ({tmp_path / 'b'})"]
    assert board["differences"][0]["difference"] == -1.0


def test_an_evaluation_that_lacks_samples_is_said_to_and_a_torn_line_is_none(tmp_path, capsys):
    given = suite({"walk": {"env": "gridworld"}})
    write(tmp_path / "a", given, {("old", "walk"): [1] * 12, ("new", "walk"): [1] * 4})
    with (tmp_path / "a" / "samples.jsonl").open("a") as file:
        file.write('{"id": "new:walk-t4')
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "new: walks 1.000" in capsys.readouterr().out
    page = (tmp_path / "leaderboard.md").read_text()
    assert "| new | 1.000 [0.510, 1.000], not complete |" in page
    assert "not complete" not in next(line for line in page.splitlines() if line.startswith("| old"))


def test_the_command_fails_on_a_regression_when_asked_and_escapes_names(tmp_path, capsys):
    given = suite({"walk": {"env": "gridworld"}}, name="<b>walks")
    write(tmp_path / "a", given, {("old", "walk"): [1] * 12, ("new", "walk"): [0] * 12})
    out = tmp_path / "page"
    assert main(["leaderboard", str(tmp_path / "a"), "--out", str(out), "--fail-on-regression"]) == 1
    assert "lower: new on <b>walks, -1.000" in capsys.readouterr().out
    page = (out / "leaderboard.html").read_text()
    assert "<b>" not in page
    assert page.index("Regressions") < page.index("Scores")
    assert json.loads((out / "leaderboard.json").read_text())["regressions"][0]["second"] == "new"
    assert main(["leaderboard", str(tmp_path / "a"), "--against", "new", "--fail-on-regression"]) == 0


def test_a_folder_without_evaluations_and_an_unknown_checkpoint_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no evaluation with samples"):
        read_columns(tmp_path)
    write(tmp_path / "a", suite({"walk": {"env": "gridworld"}}), {("old", "walk"): [1] * 12})
    with pytest.raises(ConfigError, match="--against 'other': was not evaluated; allowed: old"):
        leaderboard(read_columns(tmp_path), "other")
