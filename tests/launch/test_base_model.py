"""A recipe's base model is trained once, also for runs that start together."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import UnavailableError
from asyncrl.launch.models import base_model
from asyncrl.process_start import FORK_SERVER
from tests.engines import END_S
from tests.waiting import running, wait_until

CONFIG = parse_config({"model": {"path": "sft"}, "env": {"name": "gridworld"}})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path))


def test_runs_that_start_together_train_it_once_and_all_have_it(monkeypatch):
    trained, found = [], []

    def train(config, folder):
        trained.append(folder)
        waiting.wait(30)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    waiting = threading.Event()
    monkeypatch.setattr(base_model, "_train", train)
    runs = [
        threading.Thread(target=lambda: found.append(base_model.cached_base_model(CONFIG))) for _ in range(3)
    ]
    for run in runs:
        run.start()
    waiting.set()
    for run in runs:
        run.join(30)
    assert len(trained) == 1
    assert found == trained * 3
    assert base_model.base_model_is_cached(CONFIG)


def test_a_training_that_fails_is_an_error_of_the_run_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    # A forked process would not be what the command names.
    monkeypatch.delenv(FORK_SERVER, raising=False)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="asyncrl sft ended with exit code 1"):
            base_model.cached_base_model(CONFIG)
    assert not base_model.base_model_is_cached(CONFIG)


@pytest.mark.slow
def test_an_interrupted_training_is_told_once(tmp_path):
    errors = tmp_path / "errors"
    with errors.open("wb") as sink:
        run = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", "train", "gridworld_grpo", f"run.folder={tmp_path / 'runs'}"],
            stderr=sink, start_new_session=True,
        )  # fmt: skip
    wait_until(lambda: "sft: 4000 episodes" in errors.read_text(), running(run))
    # As a terminal does: to every process of the group.
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(END_S) == 130
    assert errors.read_text().count("asyncrl: interrupted") == 1
