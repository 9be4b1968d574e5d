"""No process that asyncrl starts imports a file of the user's current folder in the place of a module.

A folder with a `token.py`, `types.py` or `math_verify.py` of its own is an ordinary one, and `python -m` searches it
first.
"""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncrl.extensions.agents.harness import program
from asyncrl.extensions.agents.harness.file import Program
from asyncrl.process_start import children_without_folder, python_module

ROOT = Path(__file__).parents[1]
STARTER = re.compile(
    r"^(.*\bPopen|torchrun|subprocess\.(run|call|check_call|check_output|getoutput|getstatusoutput)|"
    r".*\bcreate_subprocess_(exec|shell)|.*\.subprocess_(exec|shell)|os\.(exec\w+|posix_spawnp?|spawn\w+|system|popen)|"
    r"pty\.spawn|.*\bProcessPoolExecutor|(multiprocessing|mp)\..*\b(Process|Pool))$"
)
"""What starts a process, as it is called."""
SAFE_FLAGS = ("-P", "-I")
SAFE_COMMAND, SAFE_ENVIRONMENT = "python_module", "without_folder"
SAFE_AROUND = "children_without_folder"
"""How a process is kept from the current folder: by its command, its environment, or what the call stands in."""
ELSEWHERE = {
    "asyncrl/extensions/agents/gateway/commands.py:start": "the command of a user's agent, as it was given",
    "asyncrl/cuda_toolkit.py:_release": "nvcc",
    "asyncrl/gpus.py:nvidia_smi": "nvidia-smi",
    "asyncrl/extensions/agents/harness/packaged/bash_loop.py:answer": "an agent's shell command, inside its sandbox",
    "asyncrl/extensions/agents/harness/program.py:_run": "commands of `_isolated` interpreters, and npm",
    "asyncrl/extensions/machines/slurm.py:other_nodes": "scontrol",
    "asyncrl/rewards/user_process.py:start": "the command of `user_function`, which has -P",
    "asyncrl/extensions/sandbox_attacks/host.py:__init__": "sleep",
    "asyncrl/extensions/sandbox_images/engine.py:_started": "a container engine, tar or find",
    "asyncrl/sandbox/jail/spawn.py:run_program": "a policy's program, inside its jail",
}
"""Functions with one call that starts what is no Python of ours, and what that is."""
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


@dataclass(frozen=True)
class Start:
    """A call that starts a process. function: the innermost one around it. kept: whether it shows how the process is
    kept from the current folder."""

    function: str
    line: int
    kept: bool


def starts(source):
    """Return every start of a process in a file, also one that another call is given to make."""
    found = []

    def look(node, around):
        if isinstance(node, ast.Call):
            given = [node.func, *(one for one in node.args if not isinstance(one, ast.Call))]
            if any(STARTER.search(ast.unparse(one)) for one in given):
                functions = [one for one in around if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                name = functions[-1].name if functions else ""
                found.append(Start(name, node.lineno, is_kept(node, around, functions[-1:])))
        for child in ast.iter_child_nodes(node):
            look(child, [*around, node])

    look(ast.parse(source), [])
    return found


def is_kept(call, around, function):
    entered = [item.context_expr for one in around if isinstance(one, ast.With) for item in one.items]
    if any(called(one) == SAFE_AROUND for one in entered):
        return True
    environment = [one.value for one in call.keywords if one.arg == "env"]
    if any(called(one) == SAFE_ENVIRONMENT for one in parts(environment, function)):
        return True
    return any(
        called(one) == SAFE_COMMAND or (isinstance(one, ast.Constant) and one.value in SAFE_FLAGS)
        for one in parts(call.args, function)
    )


def parts(values, function):
    """Yield everything in the expressions, and in what their names have been assigned in the function."""
    seen, left = set(), list(values)
    while left:
        for one in ast.walk(left.pop()):
            yield one
            if isinstance(one, ast.Name) and one.id not in seen:
                seen.add(one.id)
                left += [value for body in function for value in assigned(body, one.id)]


def assigned(function, name):
    """Return what a name is assigned in a function: nothing where it has been assigned more than once, as the call may
    have had the other one."""
    values = [
        one.value
        for one in ast.walk(function)
        if isinstance(one, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id == name for to in one.targets)
    ]
    return values if len(values) == 1 else []


def called(node):
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def test_every_call_that_starts_a_process_keeps_the_current_folder_from_it():
    found, seen, aliases = [], Counter(), []
    for folder in ("asyncrl", "services", "envs"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith(("asyncrl/envs/", "asyncrl/services/", "asyncrl/recipes/")):
                continue
            source = file.read_text(encoding="utf-8")
            # Under another name a call would not be seen.
            aliases += re.findall(
                r"^.*(?:from subprocess import|import subprocess as|import os as).*$", source, re.M
            )
            for one in starts(source):
                place = f"{path}:{one.function}"
                seen[place] += 1
                if not one.kept and place not in ELSEWHERE:
                    found.append(f"{path}:{one.line}")
    assert found == [] and aliases == []
    assert {place: seen[place] for place in ELSEWHERE} == dict.fromkeys(ELSEWHERE, 1)
    assert (
        seen["asyncrl/process_start.py:start_process"] == seen["services/trainer/command.py:_run_ranks"] == 1
    )


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("subprocess.run([sys.executable, '-m', 'pip'])", [False]),
        ("subprocess.run([sys.executable, '-P', 'x.py'])", [True]),
        (
            "subprocess.run([sys.executable, '-I', 'x.py'])\n    subprocess.run([sys.executable, 'x.py'])",
            [True, False],
        ),
        ("subprocess.Popen(command, env=without_folder(env))\n    os.system('python x.py')", [True, False]),
        ("env = without_folder(env)\n    subprocess.Popen(command, env=dict(env))", [True]),
        ("env = without_folder(env)\n    subprocess.Popen(command)", [False]),
        ("env = without_folder(env)\n    env = {}\n    subprocess.Popen(command, env=env)", [False]),
        ("pip = [*python_module('pip'), '-q']\n    subprocess.run([*pip, 'install'])", [True]),
        ("pip = [*python_module('pip'), '-q']\n    subprocess.run(command)", [False]),
        ("with children_without_folder():\n        torchrun(words)\n    torchrun(words)", [True, False]),
        ("await asyncio.to_thread(subprocess.run, command)", [False]),
        ("await asyncio.to_thread(subprocess.run, [sys.executable, '-P'])", [True]),
        ("return functools.partial(os.execv, path, ['-m'])", [False]),
        ("subprocess.run([*python_module('pip')], env={'A': 'B'})", [True]),
    ],
)
def test_each_start_is_judged_by_itself(body, kept):
    assert [one.kept for one in starts(f"async def start(env):\n    {body}\n")] == kept


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
