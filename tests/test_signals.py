"""A command that is told to end stops what it has started and removes what it has made."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from pathlib import Path

from asyncrl.cli import main
from asyncrl.extensions.study import runner

class Engine:
    def __init__(self, config, folder):
        self.weights = Path(sys.argv[1])
        self.weights.mkdir()

    def stop(self):
        self.weights.rmdir()

def make(run, shared):
    print("playing", flush=True)
    time.sleep(60)

runner.SharedEngine, runner._make = Engine, make
sys.exit(main(["study", sys.argv[2]]))
"""
STUDY = """
title = "One method"
recipe = "gridworld_grpo"
seeds = 1

[methods.grpo]
algo.preset = "grpo"
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_ended_stops_its_engine_and_says_how_to_go_on(tmp_path, number):
    file, weights = tmp_path / "one.toml", tmp_path / "weights"
    file.write_text(STUDY)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(weights), str(file)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as study:  # fmt: skip
        assert study.stdout.readline() == "playing\n"
        assert weights.is_dir()
        study.send_signal(number)
        _, said = study.communicate(timeout=60)
    assert study.returncode == 130
    assert f"interrupted; the same command goes on from {tmp_path / 'one.jsonl'}" in said
    assert not weights.exists()
