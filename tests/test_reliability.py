"""Real runs whose processes are killed: they end as planned, and every task is trained once."""

import json
import re
import signal
import subprocess

import pytest

from asyncrl.config import load_config
from asyncrl.launch.models.base_model import cached_base_model
from asyncrl.process_start import FORK_SERVER
from asyncrl.run.metrics import read_metrics
from asyncrl.weights.folders import SHARED_MEMORY, remove_deserted
from tests.runs import (
    CACHE,
    RECIPE,
    check_trained_once,
    command,
    end_started,
    kill_launcher,
    processes_of,
    resume,
    start,
    wait_for_step,
    weight_folders,
)
from tests.waiting import running, wait_until

# Whole runs: each wait has its own deadline, and this one is for a machine that is slow altogether.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reliability")
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(autouse=True)
def spawned():
    """Processes end when the test has ended, however it did."""
    yield
    end_started()


def test_a_run_survives_the_death_of_every_role(workplace, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", CACHE)
    cached_base_model(load_config(workplace / "recipe.toml"))
    # All roles are started by their commands, as the processes of a user's run are.
    monkeypatch.delenv(FORK_SERVER, raising=False)
    roles = ["trainer", "engine", "rollout", "env", "buffer"]
    run = workplace / "runs" / "deaths"
    process = start(
        workplace, run.name, "train.num_steps=30", "env.num_tasks=120",
        # The trainer is the first to die, before its first checkpoint on disk.
        "train.checkpoint_every=10", "train.memory_checkpoint_every=1", "env.services=1",
    )  # fmt: skip
    for role in roles:
        wait_for_step(run, len(read_metrics(run)) + 2, process)
        (victim,) = playing(run, role)
        victim.kill()
        wait_until(lambda: playing(run, role) not in ([], [victim]), running(process))  # noqa: B023
    assert process.wait(400) == 0, (workplace / f"{run.name}.err").read_text()
    check_trained_once(run, steps=30)
    died = [json.loads(line) for line in (run / "restarts.jsonl").read_text().splitlines()]
    assert [event["name"].split("-")[0] for event in died] == roles
    assert {event["why"] for event in died} == {"was killed by signal 9"}
    log = (run / "logs" / "trainer.log").read_text()
    (restored,) = re.findall(r"version (\d+) was restored from the memory", log)
    (resumed,) = re.findall(r"resuming at version (\d+ of \d+)", log)
    assert int(restored) >= 1
    # The memory may lack the version that was committed last.
    assert resumed in {f"{restored} of {int(restored) + lost}" for lost in (0, 1)}
    assert weight_folders(run.name) == []


def playing(run, role):
    return [p for p in processes_of(run) if p.info["cmdline"][4:5] == [role]]


def test_a_run_whose_launcher_was_killed_goes_on_where_its_checkpoint_is(workplace):
    run = workplace / "runs" / "resumed"
    process = start(workplace, run.name, "engine.count=2")
    wait_for_step(run, 5, process)
    kill_launcher(run, process)
    # As the next run of any name does. The weights may have gone already, with another test's run.
    remove_deserted(SHARED_MEMORY)
    assert weight_folders(run.name) == []
    resume(workplace, run, "train.zero_stage=2")
    check_trained_once(run)
    assert json.loads((run / "config.json").read_text())["train"]["zero_stage"] == 2
    summary = json.loads((run / "summary.json").read_text())
    assert summary["lives"] == 2
    assert 0 < summary["busy"]["trainer"] <= 1
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    resume(workplace, run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == files, "a finished run is left alone"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "nowhere"], "--resume nowhere: has no config.json"),
        (["--resume", "{run}", "env.name=calculator"], "env cannot change while a run goes on"),
        (["--resume", "{run}", "train.num_stepz=3"], "train.num_stepz: unknown key"),
        ([], "give a recipe, or --resume"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_by_name(workplace, words, message):
    run = workplace / "runs" / "refused"
    run.mkdir(parents=True, exist_ok=True)
    config = load_config(workplace / "recipe.toml")
    (run / "config.json").write_text(config.model_dump_json())
    done = subprocess.run(
        command(workplace, *(word.format(run=run) for word in words)),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr


def test_a_second_launcher_is_kept_out_of_a_run(workplace):
    run = workplace / "runs" / "locked"
    process = start(workplace, run.name)
    wait_until((run / "config.json").exists, running(process))
    second = subprocess.run(
        command(workplace, "--resume", str(run)), capture_output=True, text=True, timeout=120, check=False
    )
    process.send_signal(signal.SIGINT)
    process.wait(120)
    assert second.returncode == 2
    assert "another run is using it" in second.stderr
