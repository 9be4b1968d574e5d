"""A run that is interrupted waits for a last checkpoint, and stops at once when it is interrupted again."""

import signal
import sys

import pytest

from asyncrl.config import parse_config
from asyncrl.endpoint import stop_file
from asyncrl.hosts.local import spawn
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from tests.waiting import wait_until

OBEDIENT = """
import pathlib, time
ready, stop, saved = (pathlib.Path(p) for p in {paths})
ready.touch()
while not stop.exists():
    time.sleep(0.01)
(saved / "training_state").mkdir(parents=True)
for name in ("training_state/training.json", "complete.json"):
    (saved / name).touch()
"""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({paths}[0]).touch()
time.sleep(600)
"""


@pytest.fixture
def interrupted(tmp_path):
    """Return a function that gives a run whose trainer is the given program, at work."""
    runs = []

    def make(program):
        config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
        run = TrainRun(config, RunFolder(tmp_path))
        run.roles = run.make_roles("m")
        runs.append(run)
        ready = tmp_path / "endpoints" / "trainer-0.ready"
        paths = [str(path) for path in (ready, stop_file(tmp_path), tmp_path / "checkpoints" / "step-000007")]
        child = run.roles.process_group.start("trainer", ["--version"], ready=False)
        child.popen.wait(60)
        child.popen = spawn([sys.executable, "-c", program.format(paths=paths)], child.log, {})
        run.roles.main.trainer = child
        wait_until(ready.exists, child.alive)
        return run

    yield make
    for run in runs:
        run.roles.process_group.stop(grace_s=0.1)


@pytest.mark.slow
def test_the_trainer_is_given_time_to_save_what_it_has(interrupted, tmp_path, capsys):
    run = interrupted(OBEDIENT)
    run._save_last()
    assert run.roles.main.trainer.popen.returncode == 0
    assert capsys.readouterr().err.splitlines() == [
        "interrupted: saving a last checkpoint, for 120 s at most; Ctrl-C again stops at once",
        f"the newest checkpoint is {tmp_path}/checkpoints/step-000007",
    ]


@pytest.mark.slow
def test_a_trainer_that_does_not_save_in_time_is_not_waited_for(interrupted, capsys, monkeypatch):
    monkeypatch.setattr("asyncrl.launch.train.SAVE_S", 0.3)
    interrupted(DEAF)._save_last()
    assert capsys.readouterr().err.splitlines()[1] == "there is no checkpoint yet; trainer has saved no other"


@pytest.mark.slow
def test_a_second_interruption_stops_at_once(interrupted, monkeypatch):
    monkeypatch.setattr("asyncrl.launch.processes.process_group.STOP_GRACE_S", 3000.0)
    run = interrupted(DEAF)

    def again(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("asyncrl.launch.train.time.sleep", again)
        run._save_last()
    run._stop()
    assert run.roles.main.trainer.popen.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_trainer_that_has_ended_is_not_waited_for(interrupted, capsys):
    run = interrupted(DEAF)
    run.roles.process_group.kill(run.roles.main.trainer)
    run._save_last()
    assert capsys.readouterr().err == ""
