"""`asyncrl runs` and `asyncrl logs` from the command line."""

import os
import subprocess
import sys

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError, InputError
from asyncrl.run.folder import RunFolder
from asyncrl.run.logs import read_log
from asyncrl.run.prune import delete_run
from tests.run.folders import add_step, long_ago, make_run

DAY_S = 86400.0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that last wrote 50, 40 and 30 days ago, and one that is running."""
    for name, days in (("a", 50), ("b", 40), ("c", 30)):
        long_ago(make_run(tmp_path / "runs" / name), days * DAY_S)
    make_run(tmp_path / "runs" / "now", overrides=("train.learning_rate=0.5",))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def left(runs):
    return sorted(path.name for path in runs.iterdir())


def test_runs_are_listed_with_their_state_and_results(runs, capsys):
    assert main(["runs"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "run",
        "state",
        "step",
        "reward",
        "held",
        "out",
        "after",
        "environment",
        "preset",
        "written",
    ]
    assert [row.split()[:6] for row in rows] == [
        *([name, "stopped", "3/10", "0.300", "0.500", "gridworld"] for name in "abc"),
        ["now", "running", "3/10", "0.300", "0.500", "gridworld"],
    ]
    assert rows[0].endswith("7 w ago")
    assert main(["runs", "list", "runs/a"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_runs_are_compared_by_results_and_settings(runs, capsys):
    assert main(["runs", "compare", "runs/a", "runs/now"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["runs/a", "runs/now"]
    assert ["state", "stopped", "running"] in rows
    assert [
        "held",
        "out",
        "before",
        "success",
        "0.500",
        "[0.400,",
        "0.600]",
        "success",
        "0.500",
        "[0.400,",
        "0.600]",
    ] in rows
    settings = [row for row in rows if "." in row[0]]
    assert [(row[0], row[2]) for row in settings] == [("train.learning_rate", "0.5")]


@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        (["--older-than", "35d"], "ab"),
        (["--keep", "3"], "a"),
        (["--older-than", "5w", "--keep", "3"], "a"),
        (["--keep", "0"], "abc"),
    ],
)
def test_old_runs_are_deleted_but_never_one_that_is_running(runs, capsys, arguments, gone):
    assert main(["runs", "prune", *arguments, "--yes"]) == 0
    assert left(runs) == sorted({"a", "b", "c", "now"} - set(gone))
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"deleted {len(gone)} run")


def test_a_run_in_use_is_not_deleted_though_it_has_long_been_silent(runs, capsys):
    with RunFolder(runs / "a"):
        assert main(["runs", "prune", "--keep", "3", "--yes"]) == 2
    assert "another run is using it" in capsys.readouterr().err
    assert (runs / "a" / "metrics.jsonl").is_file()


def test_a_run_whose_model_another_run_trains_stays(runs, capsys):
    make_run(runs / "child", overrides=(f"model.path={runs / 'a' / 'checkpoints' / 'step-000003'}",))
    assert main(["runs", "prune", "--older-than", "45d", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "runs/a  written 7 w ago  stays: it holds the model of child", "nothing to delete",
    ]  # fmt: skip
    assert (runs / "a").is_dir()


def test_a_link_and_what_it_leads_to_are_no_runs_to_delete_and_nor_is_a_folder_of_its_name(
    runs, tmp_path, capsys
):
    """The name of a link is that of what it leads to, which another folder beside it may have."""
    outside = make_run(tmp_path / "elsewhere" / "victim")
    long_ago(outside, 60 * DAY_S)
    (runs / "alias").symlink_to(outside)
    victim = runs / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("years of work")
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert left(runs) == ["alias", "now", "victim"]
    assert (victim / "thesis.txt").is_file() and (outside / "metrics.jsonl").is_file()
    assert "runs/alias" in (out := capsys.readouterr().out) and "stays: it is a link" in out


@pytest.mark.parametrize("config", ['{"model_type": "qwen3"}', "[]", "{", '{"env": 1, "train": {}}'])
def test_a_folder_whose_configuration_is_no_runs_is_not_deleted(runs, capsys, config):
    model = runs / "model"
    model.mkdir()
    (model / "config.json").write_text(config)
    (model / "model.safetensors").write_text("weights")
    os.utime(model / "config.json", (1.0, 1.0))
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert left(runs) == ["model", "now"]
    assert "stays: it is no run: its config.json is not one of a run" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is not deleted: it is no run"):
        delete_run(model)


def test_a_linked_configuration_makes_no_run(runs):
    (runs / "fake").mkdir()
    (runs / "fake" / "config.json").symlink_to(runs / "a" / "config.json")
    (runs / "fake" / "kept.txt").write_text("mine")
    assert main(["runs", "prune", "--older-than", "45d", "--yes"]) == 0
    assert left(runs) == ["b", "c", "fake", "now"]


def test_a_log_that_is_a_link_is_none_and_what_others_wrote_is_text(runs, tmp_path, capsys):
    logs = runs / "a" / "logs"
    (tmp_path / "secret").write_text("token")
    (logs / "linked-0.log").symlink_to(tmp_path / "secret")
    (logs / "rollout-0.log").write_bytes(b"\x1b]0;T\x07\x1b[2J\x1b[31mwarm\x1b[0m\r\n")
    assert main(["logs", "runs/a", "rollout"]) == 0
    assert capsys.readouterr().out == "==> rollout-0 <==\n\\x1b]0;T\\x07\\x1b[2Jwarm\n"
    assert main(["logs", "runs/a", "linked"]) == 2
    with pytest.raises(InputError):
        read_log(runs / "a", "linked-0")


def test_deleting_asks_first_and_needs_a_terminal_for_that(runs, capsys, monkeypatch):
    assert main(["runs", "prune", "--keep", "0"]) == 2
    assert "give --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["runs", "prune", "--keep", "0"]) == 0
    assert capsys.readouterr().out.endswith("nothing was deleted\n")
    assert left(runs) == ["a", "b", "c", "now"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "prune"], "--older-than AGE, --keep N, or both"),
        (["runs", "prune", "--older-than", "30"], "--older-than 30: must be a number with m, h, d or w"),
        (["runs", "prune", "--keep", "-1"], "--keep -1: must be at least 0"),
        (
            ["runs", "prune", "runs/a", "--keep", "0"],
            "is a run itself; give the folder that holds runs, such as runs",
        ),
        (["runs", "compare", "runs/a"], "give two runs or more"),
        (
            ["runs", "compare", "runs", "runs/a"],
            "runs compare runs: has no config.json; give one of its runs: a, b, c",
        ),
        (["logs", "runs"], "logs runs: has no config.json"),
        (["logs", "runs/a", "nobody"], "has no log of nobody; there are engine-0"),
        (["logs", "runs/a", "--lines", "-1"], "--lines -1: must be at least 0"),
    ],
)
def test_what_cannot_be_done_is_said(runs, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_logs_are_printed_by_process_and_by_role(runs, capsys):
    logs = runs / "a" / "logs"
    (logs / "engine-0.log").write_text("".join(f"line {i}\n" for i in range(100)) + "torn")
    (logs / "trainer.log").write_text("trains\n")
    assert main(["logs", "runs/a", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "==> engine-0 <==\nline 99\ntorn\n==> trainer <==\ntrains\n"
    assert main(["logs", "runs/a", "engine", "--lines", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 102
    assert main(["logs", "runs/a", "trainer"]) == 0
    assert capsys.readouterr().out == "==> trainer <==\ntrains\n"


@pytest.mark.slow
def test_a_log_is_followed_until_its_run_ends(runs):
    run = runs / "now"
    command = [sys.executable, "-m", "asyncrl", "logs", "runs/now", "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["==> engine-0 <==\n", "the engine serves\n"]
        (run / "logs" / "trainer.log").write_text("starts\n")
        add_step(run, 4)
        assert [process.stdout.readline() for _ in range(2)] == ["==> trainer <==\n", "starts\n"]
        with open(run / "logs" / "trainer.log", "a") as file:
            file.write("ends")
        long_ago(run)
        assert process.stdout.read() == "ends\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
