"""The same task folders judged by harbor's own package and here.

Harbor needs Python 3.12, and a container engine with an image to start from, which no test downloads: name them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.envs.terminal.folder import read_folder
from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import MIB
from tests.envs.harbor_steps import STEPS, write_steps
from tests.envs.harbor_tasks import TASKS, write_tasks
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, write_task
from tests.envs.test_terminal_images import make, solved
from tests.envs.test_terminal_steps import idle
from tests.envs.test_terminal_steps import make as make_steps
from tests.envs.test_terminal_steps import solved as solved_steps

PYTHON = os.environ.get("ASYNCRL_HARBOR_PYTHON", "")
"""An interpreter that has the package harbor."""
PODMAN = os.environ.get("ASYNCRL_HARBOR_PODMAN", "podman")
IMAGE = os.environ.get("ASYNCRL_HARBOR_IMAGE", "")
"""A local image with bash, python3, pip, git, gcc and make."""
ROOT = os.environ.get("ASYNCRL_HARBOR_ROOT", "host")
"""The same as an unpacked root file system."""


@pytest.mark.skipif(
    not (PYTHON and IMAGE), reason="ASYNCRL_HARBOR_PYTHON and ASYNCRL_HARBOR_IMAGE name no harbor"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
def test_ten_tasks_are_judged_as_harbor_judges_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = write_tasks(tmp_path / "tasks", IMAGE)
    peer = Path(__file__).with_name("harbor_peer.py")
    argv = [PYTHON, str(peer), str(folder), str(tmp_path / "out"), *PODMAN.split()]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    theirs = json.loads(ended.stdout.splitlines()[-1])
    bases = {IMAGE: ROOT}
    ours = {}
    for name in TASKS:
        nothing = play(make(folder, name, bases=bases), DONE)[-1].reward
        ours[name] = {"oracle": solved(folder, name, bases=bases).reward, "nop": nothing}
        print(name, ours[name], file=sys.stderr)
    assert ours == theirs == {name: {"oracle": 1.0, "nop": 0.0} for name in TASKS}


@pytest.mark.skipif(
    not (PYTHON and IMAGE), reason="ASYNCRL_HARBOR_PYTHON and ASYNCRL_HARBOR_IMAGE name no harbor"
)
def test_tasks_of_steps_are_judged_as_harbor_judges_them(tmp_path):
    folder = write_steps(tmp_path / "tasks", IMAGE)
    peer = Path(__file__).with_name("harbor_peer.py")
    argv = [PYTHON, str(peer), str(folder), str(tmp_path / "out"), *PODMAN.split()]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    theirs = json.loads(ended.stdout.splitlines()[-1])
    ours = {}
    for name in STEPS:
        oracle = sum(step.reward for step in solved_steps(make_steps(folder, name)))
        ours[name] = {"oracle": oracle, "nop": sum(step.reward for step in idle(make_steps(folder, name)))}
        print(name, ours[name], file=sys.stderr)
    for name, task in STEPS.items():
        expected = pytest.approx({"oracle": task.oracle, "nop": task.nop})
        assert ours[name] == expected and theirs[name] == expected


OWN = '[verifier]\nenvironment_mode = "separate"\n'
TOMLS = {
    "shared": 'artifacts = ["/app/x"]\n',
    "shared by name": '[verifier]\nenvironment_mode = "shared"\n[[verifier.collect]]\ncommand = "true"\n',
    "separate": 'artifacts = ["/app/x", {source = "/app/y", exclude = ["*.o"], destination = "why"}]\n' + OWN,
    "like the agent's": OWN + '[environment]\nmemory_mb = 64\nenv = {A = "1"}\nnetwork_mode = "no-network"\n',
    "its own": '[verifier.environment]\nmemory_mb = 32\nnetwork_mode = "no-network"\n'
    '[verifier.environment.env]\nB = "2"\n[environment]\nenv = {A = "1"}\n',
    "its own phase": '[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n'
    '[verifier.environment]\nnetwork_mode = "no-network"\n',
    "logs named": 'artifacts = [{source = "/logs/artifacts", exclude = ["big"]}]\n' + OWN,
    "collected": OWN + '[[verifier.collect]]\ncommand = "dump"\ntimeout_sec = 5.0\n',
    "dockerfile": OWN,
    "both": '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n',
    "another mode": '[verifier]\nenvironment_mode = "other"\n',
    "outside": 'artifacts = ["/app/../x"]\n' + OWN,
}


def our_reading(folder):
    try:
        work = read_folder(folder)
    except ConfigError:
        return None
    own = work.verifier
    if own is None:
        return {"separate": False}
    return {
        "separate": True,
        "bundled": own.tests_in_image,
        "env": dict(own.toml.env),
        "memory_mb": own.toml.memory_bytes // MIB,
        "network": [own.toml.network.mode, list(own.toml.network.allowed)],
        "artifacts": [[artifact.source, list(artifact.exclude)] for artifact in work.toml.artifacts],
        "collect": [[hook.command, hook.timeout_s] for hook in work.toml.collect],
    }


@pytest.mark.skipif(not PYTHON, reason="ASYNCRL_HARBOR_PYTHON names no harbor")
def test_environments_of_tests_are_read_as_harbor_reads_them(tmp_path):
    folders = []
    for name, toml in TOMLS.items():
        folder = write_task(tmp_path / name.replace(" ", "-"), "true") / name.replace(" ", "-")
        (folder / "task.toml").write_text(toml)
        (folder / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\n")
        if name == "dockerfile":
            (folder / "tests" / "Dockerfile").write_text(
                "FROM debian:12\nCOPY . /tests\nRUN touch /tests/more\n"
            )
        folders.append(folder)
    argv = [PYTHON, str(Path(__file__).with_name("harbor_reading.py")), *map(str, folders)]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    theirs = dict(zip(TOMLS, json.loads(ended.stdout.splitlines()[-1]), strict=True))
    assert {name: our_reading(folder) for name, folder in zip(TOMLS, folders, strict=True)} == theirs
    assert [name for name, found in theirs.items() if found is None] == ["both", "another mode", "outside"]
