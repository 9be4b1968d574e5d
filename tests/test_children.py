"""No process that asyncrl starts imports a file of the user's current folder in the place of a module.

A folder with a `token.py`, `types.py` or `math_verify.py` of its own is an ordinary one, and `python -m` searches it
first.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.harness import program
from asyncrl.harness.file import Program
from asyncrl.process_start import children_without_folder, python_module

ROOT = Path(__file__).parents[1]
STARTER = re.compile(
    r"^(.*\bPopen|torchrun|subprocess\.(run|call|check_call|check_output)|.*\bcreate_subprocess_(exec|shell)|"
    r"os\.(exec\w+|posix_spawnp?|spawn\w+|system))$"
)
"""What starts a process, as it is called."""
WAYS = ("without_folder(", '"-P"', '"-I"', "python_module(", "children_without_folder(")
"""How a process is kept from the current folder, in the text of the function that starts it."""
ELSEWHERE = {
    "asyncrl/gateway/commands.py:start": "the command of a user's agent, as it was given",
    "asyncrl/gpus.py:nvidia_smi": "nvidia-smi",
    "asyncrl/harness/packaged/bash_loop.py:answer": "an agent's shell command, inside its sandbox",
    "asyncrl/harness/program.py:_run": "commands of `_isolated` interpreters, and npm",
    "asyncrl/launch/machines/slurm.py:other_nodes": "scontrol",
    "asyncrl/rewards/user_process.py:start": "the command of `user_function`, which has -P",
    "asyncrl/sandbox/attack_host.py:__init__": "sleep",
    "asyncrl/sandbox/jail/spawn.py:run_program": "a policy's program, inside its jail",
}
"""Functions that start what is no Python of ours, and what that is."""
NAMES = [
    "token",
    "types",
    "calendar",
    "json",
    "random",
    "queue",
    "math_verify",
    "tasks",
    "rewards",
    "asyncrl",
]


def starts(node, function=None):
    """Yield the innermost function around each call that starts a process."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node
    if isinstance(node, ast.Call) and STARTER.search(ast.unparse(node.func)):
        yield function
    for child in ast.iter_child_nodes(node):
        yield from starts(child, function)


def test_every_place_that_starts_a_process_keeps_the_current_folder_from_it():
    found, seen = [], set()
    for folder in ("asyncrl", "services", "envs"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith(("asyncrl/envs/", "asyncrl/services/", "asyncrl/recipes/")):
                continue
            text = file.read_text(encoding="utf-8")
            for function in starts(ast.parse(text)):
                place = f"{path}:{function.name if function else ''}"
                seen.add(place)
                source = ast.get_source_segment(text, function) if function else text
                if place not in ELSEWHERE and not any(way in source for way in WAYS):
                    found.append(place)
    assert found == []
    assert ELSEWHERE.keys() <= seen
    assert (
        "asyncrl/process_start.py:start_process" in seen and "services/trainer/command.py:_run_ranks" in seen
    )


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A current folder with modules that say so when they are imported; a process finds this asyncrl without it."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open('imported', 'a').write('{name} ')\nraise ImportError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path
    assert not (tmp_path / "imported").exists()


def test_what_a_library_starts_for_this_process_is_kept_from_it_too(hostile, monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "1")
    with children_without_folder():
        os.environ["OF_THE_LIBRARY"] = "1"
        done = subprocess.run([sys.executable, "-u", "-m", "asyncrl", "--version"], check=False)
    assert done.returncode == 0
    assert os.environ.pop("OF_THE_LIBRARY") == os.environ["OF_THE_USER"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ and os.environ["PYTHONPATH"] == str(ROOT)


def test_pip_is_started_beside_a_users_modules(hostile, tmp_path):
    done = subprocess.run([*python_module("pip"), "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("pip "), done.stderr
    made = tmp_path / "venv"
    program._run(
        [*program._isolated(sys.executable), "-m", "venv", "--without-pip", str(made)],
        Program(pip="mine", version="1.0"),
    )
    assert (made / "bin" / "python3").exists()
