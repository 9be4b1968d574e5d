"""`scripts/scaling.py` runs from any folder: the environment of its runs is found beside it."""

import os
import subprocess
import sys

from asyncrl.config import load_config
from tests.scripts import load_script


def test_the_environment_of_the_script_is_found_from_any_folder(tmp_path):
    name = load_script("scaling").ENVIRONMENT
    assert load_config("gridworld_grpo", [f"env.name={name}"]).env.name == name
    # As in a process of a run, which does not have the repository on its path.
    elsewhere = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    load = f"from asyncrl.env.registry import load_env; print(load_env({name!r}).__name__)"
    found = subprocess.run(
        [sys.executable, "-c", load],
        cwd=tmp_path, env=elsewhere, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("PacedGridworld\n", "")
