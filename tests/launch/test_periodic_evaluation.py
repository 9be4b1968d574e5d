"""Evaluation beside the training: a pinned version, its own engine, results in the run folder."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.launch.evaluation.periodic_evaluation import PeriodicEvaluation, read_evals
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.run.checkpoints import MARKER, STATE, VALUES, checkpoint_path


def config(model, **evaluation):
    return parse_config(
        {
            "run": {"threads": 1},
            "model": {"path": model},
            "env": {"name": "gridworld"},
            "engine": {"max_model_len": 256, "max_num_seqs": 64},
            "rollout": {"max_tokens_per_turn": 6},
            "train": {"num_steps": 8},
            "eval": {"tasks": 6, "every": 2, **evaluation},
        }
    )


def setup(folder, model, *versions):
    (folder / "config.json").write_text(config(model).model_dump_json())
    for version in versions:
        path = checkpoint_path(folder / "checkpoints", version)
        shutil.copytree(model, path)
        (path / STATE).mkdir()
        for file in (path / MARKER, path / STATE / VALUES):
            file.write_text("{}")
    return PeriodicEvaluation(config(model), folder, ProcessGroup(folder))


async def until_ended(evals, seconds=200):
    async with asyncio.timeout(seconds):
        while (record := evals.tick()) is None:
            await asyncio.sleep(0.2)
    return record


@pytest.mark.slow
def test_the_newest_due_version_is_played_even_when_its_checkpoint_is_removed(tiny_model, tmp_path):
    evals = setup(tmp_path, tiny_model, 1, 2, 4)
    try:
        assert evals.tick() is None
        shutil.rmtree(tmp_path / "checkpoints")
        record = asyncio.run(until_ended(evals))
    finally:
        evals.process_group.stop()
    assert (record["version"], record["tasks"], record["failed"]) == (4, 6, {})
    assert 0 <= record["mean"] <= 1
    assert read_evals(tmp_path) == [record]
    assert not (tmp_path / "evaluating").exists()
    assert evals.process_group.processes == []


def test_versions_that_are_not_due_or_done_start_nothing(tiny_model, tmp_path):
    evals = setup(tmp_path, tiny_model, 1, 3, 8)
    assert evals.tick() is None
    assert evals.process_group.processes == [], (
        "1 and 3 are not due, and 8 is the last, evaluated after training anyway"
    )
    (tmp_path / "evals.jsonl").write_text(json.dumps({"version": 4, "mean": 0.5}) + "\n")
    resumed = setup(tmp_path, tiny_model, 2)
    assert resumed.tick() is None
    assert resumed.process_group.processes == []


@pytest.mark.slow
def test_an_evaluation_that_fails_is_recorded_and_ends_nothing(tiny_model, tmp_path):
    evals = setup(tmp_path, tiny_model, 2)
    (checkpoint_path(tmp_path / "checkpoints", 2) / "config.json").write_text("{}")
    try:
        record = asyncio.run(until_ended(evals))
    finally:
        evals.process_group.stop()
    assert record["version"] == 2
    assert "asyncrl eval ended with exit code" in record["error"]
    assert read_evals(tmp_path)[0]["error"] == record["error"]
    log = (tmp_path / "logs" / "eval.log").read_text()
    found = re.search(r"engine .*; see (\S+/logs/engine\.log)", log)
    kept = Path(found[1])
    assert "vLLM exited with code" in kept.read_text(), "the log is where the message says"
    assert "model_type" in log, "and its last lines, which say why, are on the console"
    shutil.rmtree(kept.parents[1])


def test_every_needs_tasks():
    with pytest.raises(ConfigError, match=r"eval\.tasks must be above 0 for eval\.every=2"):
        config("x", tasks=0)
