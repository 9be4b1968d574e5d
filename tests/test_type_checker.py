"""The type checker sees every module of the package: nothing imported from the linked folders is `Any` to it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.env.service import serve_env

reveal_type(serve_env)
reveal_type(BufferClient.status)
reveal_type(Gridworld.step)
"""
EXPECTED = (
    "def (host: str =, port: int =",
    "def (self: asyncrl.services.buffer.client.BufferClient) -> ",
    "-> asyncrl.env.protocol.Step",
)
"""Parts of the types, in this order."""


@pytest.mark.slow
def test_services_and_environments_are_not_any_to_the_checker(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With the settings of the repository, and the cache that `make check` keeps there.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)],
        cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    revealed = [
        line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line
    ]
    assert done.returncode == 0 and len(revealed) == len(EXPECTED), done.stdout + done.stderr
    for expected, shown in zip(EXPECTED, revealed, strict=True):
        assert expected in shown


def test_imports_without_types_are_allowed_for_named_packages_only():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "ignore_missing_imports" not in settings
    named = [name for part in settings["overrides"] for name in part["module"]]
    assert named and not [name for name in named if name.startswith(("*", "asyncrl", "tests"))]
