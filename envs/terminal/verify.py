"""Runs a task's tests in the agent's folder, when no process of the agent is left."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources

from asyncrl.envs.terminal.folder import TaskFolder, rename_paths
from asyncrl.errors import EnvironmentFailure, InputError
from asyncrl.sandbox.base import BaseSandbox, Judge
from asyncrl.sandbox.protocol import Sandbox

KEPT_BYTES = 64 * 1024
REWARD_BYTES = 64 * 1024
KILLED = 129
"""The lowest exit status of a program that was killed by a signal."""
BASH = ("bash", "--noprofile", "--norc")
PYTHON_START = ".python-start"
"""Folder of the code that every Python started by the tests runs first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    reward: float
    """From 0 to 1."""
    passed: float
    """Share of tests passed, if known; else the reward."""
    output: str = ""
    components: Mapping[str, float] = field(default_factory=dict)
    """Further ones of the last step."""
    spent: bool = False
    """Whether the tests could not be taken out of the session, which must not go on then."""


async def verify(box: Sandbox, task: TaskFolder, goes_on: bool = False) -> Verdict:
    """Put the tests where the agent's programs have never been, run them there, and read the verdict.

    goes_on: take them out again, for an agent that works on in the session. Raises `EnvironmentFailure` if the tests
    give no verdict, but not for anything the agent has left in its session.
    """
    judge = box.judge() if isinstance(box, BaseSandbox) else Judge(box)
    verdict = await _verified(judge, task)
    if goes_on:
        try:
            await judge.clear()
        except InputError as error:
            return replace(verdict, output=f"{verdict.output}\n{error}", spent=True)
    return verdict


async def _verified(judge: Judge, task: TaskFolder) -> Verdict:
    tests = judge.tests
    files = {name: _text(data, task, tests, judge.logs) for name, data in task.tests.items()}
    try:
        await judge.write(files | {f"{PYTHON_START}/sitecustomize.py": _own_text("python_start.py").encode()})
    except InputError as error:
        # The agent has filled the disk, for example: its work cannot be judged, and that is its fault.
        return Verdict(0.0, 0.0, str(error))
    # The judging programs must not read the agent's dot files and packages, or its files in place of a library's.
    env = {
        **task.toml.test_env,
        "HOME": judge.logs,
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": f"{tests}/{PYTHON_START}",
    }
    options = {"env": env, "timeout_s": task.toml.verifier_timeout_s, "max_output_bytes": KEPT_BYTES}
    if "test.sh" in task.tests:
        argv = [*BASH, f"{tests}/test.sh"]
        if task.start:
            start = rename_paths(task.start, task.workdir, tests, judge.logs)
            argv = [*BASH, "-c", f'cd "$0" && exec {" ".join(BASH)} "$1"', start, argv[-1]]
        result = await judge.exec(argv, **options)  # type: ignore[arg-type]
        output = result.text + result.stderr.decode("utf-8", "replace")
        if result.timed_out or result.out_of_memory or result.returncode >= KILLED:
            # The last output of the tests is missing.
            return Verdict(0.0, 0.0, output)
        reward = await _read_reward(judge)
        if reward is None:
            # Tests that should write a reward and left none were prevented from it.
            writes = any(b"reward.txt" in data or b"reward.json" in data for data in task.tests.values())
            reward = float(result.ok and not writes)
        return Verdict(reward, reward, output)
    token = secrets.token_hex(8)
    argv = ["python3", "-I", "-S", "-B", "-c", runner_text(), f"{tests}/test_outputs.py"]
    result = await judge.exec(argv, stdin=token.encode(), **options)  # type: ignore[arg-type]
    return _judge(result.text, result.stderr.decode("utf-8", "replace"), token, task)


def runner_text() -> str:
    """Return the program that runs the functions of test_outputs.py."""
    return _own_text("runner.py")


def _own_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _text(data: bytes, task: TaskFolder, tests: str, logs: str) -> bytes:
    try:
        return rename_paths(data.decode("utf-8"), task.workdir, tests, logs).encode()
    except UnicodeDecodeError:
        return data


def _judge(output: str, errors: str, token: str, task: TaskFolder) -> Verdict:
    """Read the runner's last line; without it (if a test ended the interpreter, for example) nothing has passed."""
    for line in output.splitlines():
        if line.startswith(token):
            counts = json.loads(line[len(token) :])
            if not counts["tests"]:
                raise EnvironmentFailure(
                    f"terminal task {task.name}: tests/test_outputs.py has no plain test function: {errors}"
                )
            passed = counts["passed"] / counts["tests"]
            return Verdict(float(passed == 1), passed, errors)
    return Verdict(0.0, 0.0, errors)


async def _read_reward(judge: Judge) -> float | None:
    """Return the `reward` of reward.json, or the number in reward.txt; None if the tests wrote neither.  0 if the
    first of them is a folder or a link, which no test makes, or empty, as on a disk that the agent has filled, or
    invalid, as the agent's program may have written it.
    """
    for name in ("reward.json", "reward.txt"):
        try:
            data = await judge.read(name, REWARD_BYTES)
        except InputError:
            return 0.0
        if data is None:
            continue
        if not data.strip():
            return 0.0
        try:
            found = json.loads(data)
            reward = float(found["reward"] if isinstance(found, dict) else found)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            if not judge.sealed:
                return 0.0
            raise EnvironmentFailure(f"terminal: {name} holds no reward: {data[:200]!r}") from error
        if not judge.sealed and not math.isfinite(reward):
            return 0.0
        if not math.isfinite(reward):
            raise EnvironmentFailure(f"terminal: {name}: the reward must be finite, got {reward}")
        return min(1.0, max(0.0, reward))
    return None
