"""The same task folders judged by harbor's own package and here.

Harbor needs Python 3.12, and a container engine with an image to start from, which no test downloads: name them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.harbor_tasks import TASKS, write_tasks
from tests.envs.playing import play
from tests.envs.test_terminal import DONE
from tests.envs.test_terminal_images import make, solved

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
