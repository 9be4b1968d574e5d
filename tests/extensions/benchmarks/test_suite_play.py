"""Evaluations on a suite: what they fix, what they go on with, and that kills cost no sample and repeat none."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.samples import FILE
from asyncrl.extensions.benchmarks.suite import load_suite, part_tasks
from asyncrl.extensions.benchmarks.suite_play import open_evaluation, suite_config
from tests.runs import processes_of
from tests.waiting import running, wait_until

TASKS, SAMPLES = 24, 2
SUITE = f"""
version = 1
samples = {SAMPLES}
max_tokens_per_turn = 8
max_model_len = 4096
[parts.walk]
env = "gridworld"
tasks = {TASKS}
tags = ["navigation"]
config = {{ max_turns = 3 }}
[parts.calc]
env = "calculator"
tasks = {TASKS}
difficulty = "easy"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SUITE)
    return tmp_path


def suite_and_tasks():
    suite = load_suite("small.toml")
    return suite, {name: part_tasks(name, part) for name, part in suite.parts.items()}


def test_a_suite_decides_what_is_played_and_the_checkpoint_how_much_context_there_is(folder, tiny_model):
    suite, _ = suite_and_tasks()
    config = suite_config(suite, tiny_model, None, ["run.threads=1"])
    assert (config.env.name, set(config.env.config["parts"])) == ("mix", {"walk", "calc"})
    assert (config.engine.max_model_len, config.rollout.max_tokens_per_turn, config.run.threads) == (
        256,
        8,
        1,
    )
    for override in ("env.config.parts.walk.config={size=3}", "eval.temperature=0.5"):
        with pytest.raises(ConfigError, match=f"the suite 'small' fixes {override.partition('=')[0]}"):
            suite_config(suite, tiny_model, None, [override])


def test_a_folder_goes_on_with_the_same_suite_tasks_and_checkpoints_only(folder):
    suite, tasks = suite_and_tasks()
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
    a, b = ({name: suite_config(suite, name, None, [])} for name in ("a", "b"))
    out = Path("out")
    assert open_evaluation(out, suite, tasks, a) == ["a"]
    assert open_evaluation(out, suite, tasks, b) == ["a", "b"], "checkpoints may be added"
    with pytest.raises(ConfigError, match="evaluation on suite 'small' version 1 with another samples"):
        open_evaluation(out, suite.model_copy(update={"samples": 3}), tasks, a)
    with pytest.raises(ConfigError, match="holds an evaluation on other tasks"):
        open_evaluation(out, suite, tasks | {"walk": tasks["walk"][1:]}, a)
    other = {"a": suite_config(suite, "a", None, ["model.tool_format=llama", "run.threads=1"])}
    with pytest.raises(ConfigError, match="'a' was evaluated with other settings of model"):
        open_evaluation(out, suite, tasks, other)
    Path("a", "config.json").write_text('{"changed": 1}')
    with pytest.raises(ConfigError, match="'a' has changed since"):
        open_evaluation(out, suite, tasks, a)
    with pytest.raises(ConfigError, match="is not empty and holds no evaluation"):
        open_evaluation(Path("a"), suite, tasks, b)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["m"], "give one of --env NAME, --harness NAME, --suite NAME and --on SET"),
        (
            ["m", "--env", "code", "--harness", "bash"],
            "give one of --env NAME, --harness NAME, --suite NAME and --on SET",
        ),
        (["m", "--harness", "bash"], "--tasks: must be a folder or an environment with --harness"),
        (
            ["m", "--harness", "bash", "--tasks", "5"],
            "--tasks: must be a folder or an environment with --harness",
        ),
        (
            ["m", "--env", "code", "--tasks", "folder"],
            "--tasks: must be a folder or an environment with --harness",
        ),
        (["m", "--suite", "small.toml", "--tasks", "3"], "--tasks goes with --env"),
        (["m", "n", "--env", "gridworld"], "one checkpoint at a time without --suite and --on"),
        (["m", "m", "--suite", "small.toml"], "'m' is given twice"),
        (["./m", "--suite", "small.toml"], "checkpoint: there is no folder 'm'"),
        (["m", "--suite", "small.toml", "run.seed=1"], "the suite 'small' fixes run.seed"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_starts(folder, capsys, argv, message):
    assert main(["eval", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not Path("evals").exists()


def lines():
    path = Path("out", FILE)
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_kills_cost_no_sample_and_repeat_none(folder, tiny_model):
    for name in ("a", "b"):
        shutil.copytree(tiny_model, name)
    command = [sys.executable, "-m", "asyncrl", "eval", "a", "b", "--suite", "small.toml"]
    command += ["--out", str(folder / "out"), "run.threads=1", f"engine.max_num_seqs={2 * SAMPLES}"]

    def start(log):
        with open(log, "w") as sink:
            return subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ})

    first = start("first.log")
    try:
        wait_until(lambda: lines() >= 4, running(first))
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
        # Its processes end with it.
        wait_until(lambda: not processes_of(folder / "out"), limit_s=120)
        kept = Path("out", FILE).read_bytes()
        assert lines() < 2 * TASKS * SAMPLES, "it was killed while it played"
        second = start("second.log")
        seen = kept.count(b"\n")
        wait_until(lambda: lines() >= seen + 4, running(second))
        # All that plays dies at once: the worker, the environments, and the engine with its vLLM server.
        for role in ("rollout", "env", "engine"):
            (process,) = (
                process
                for process in processes_of(folder / "out" / "work")
                if f"serve {role}" in " ".join(process.info["cmdline"])
            )
            process.kill()
        assert second.wait(400) == 0, Path("second.log").read_text()
    finally:
        for process in (first, locals().get("second")):
            if process is not None and process.poll() is None:
                process.kill()
    written = Path("out", FILE).read_bytes()
    assert written.startswith(kept[: kept.rfind(b"\n") + 1])
    rows = [json.loads(line) for line in written.splitlines()]
    assert set(Counter(row["id"] for row in rows).values()) == {1}
    assert Counter((row["checkpoint"], row["part"]) for row in rows) == {
        (name, part): TASKS * SAMPLES for name in "ab" for part in ("walk", "calc")
    }
    assert not any(row["failure"] for row in rows)
    assert all(row["messages"][0]["role"] in ("system", "user") for row in rows)
    restarts = [json.loads(line) for line in Path("out/work/1/restarts.jsonl").read_text().splitlines()]
    assert sorted(one["name"] for one in restarts) == ["engine", "env", "rollout"]
    result = json.loads(Path("out/results.json").read_text())
    assert result["complete"] and list(result["checkpoints"]) == ["a", "b"]
    assert result["comparisons"][0]["tasks"] == 2 * TASKS
    assert "samples are there" in Path("second.log").read_text()
    assert "## Comparison" in Path("out/report.md").read_text()
    # Nothing is missing, so nothing starts: the results are written anew and judged.
    assert (
        main(["eval", "a", "--suite", "small.toml", "--out", str(folder / "out"), "--fail-under", "1.01"])
        == 1
    )
    assert Path("out", FILE).read_bytes() == written
