"""Runs a task's tests in the folder that the agent has left, once nothing of the agent runs any more."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass
from importlib import resources

from asyncrl.env.sandbox.protocol import WORKDIR, Sandbox
from asyncrl.envs.terminal.folder import TaskFolder, archive, rename_paths
from asyncrl.errors import EnvironmentFailure, InputError

KEPT_BYTES = 64 * 1024
REWARD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    reward: float
    """From 0 to 1."""
    passed: float
    """Share of tests passed, where that is known; else the reward."""
    output: str = ""


async def verify(box: Sandbox, task: TaskFolder) -> Verdict:
    """Put the tests into a folder of a name nobody knows, run them there, read the verdict.

    Raises `EnvironmentFailure` when the tests give none.
    """
    place = f".verifier-{secrets.token_hex(8)}"
    tests, logs = f"{WORKDIR}/{place}/tests", f"{WORKDIR}/{place}/logs"
    files = {f"{place}/tests/{name}": _text(data, task, tests, logs) for name, data in task.tests.items()}
    # The agent's own dot files and packages must not be read by what judges it.
    env = {"HOME": f"{WORKDIR}/{place}", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    unpacked = await box.exec(["tar", "-xf", "-"], stdin=archive(files), env=env)
    made = await box.exec(["mkdir", "-p", logs], env=env)
    if not (unpacked.ok and made.ok):
        # The agent has filled the disk, say: its work cannot be judged, and that is its fault.
        return Verdict(0.0, 0.0, unpacked.stderr.decode("utf-8", "replace"))
    options = {"env": env, "timeout_s": task.verifier_timeout_s, "max_output_bytes": KEPT_BYTES}
    if "test.sh" in task.tests:
        argv = ["bash", "--noprofile", "--norc", f"{tests}/test.sh"]
        result = await box.exec(argv, **options)  # type: ignore[arg-type]
        output = result.text + result.stderr.decode("utf-8", "replace")
        reward = await _read_reward(box, logs)
        reward = float(result.ok) if reward is None else reward
        return Verdict(reward, reward, output)
    token = secrets.token_hex(8)
    argv = ["python3", "-I", "-S", "-B", "-c", runner_text(), f"{tests}/test_outputs.py"]
    result = await box.exec(argv, stdin=token.encode(), **options)  # type: ignore[arg-type]
    return _judge(result.text, result.stderr.decode("utf-8", "replace"), token, task)


def runner_text() -> str:
    """Return the program that runs the functions of test_outputs.py."""
    return resources.files(__package__).joinpath("runner.py").read_text(encoding="utf-8")


def _text(data: bytes, task: TaskFolder, tests: str, logs: str) -> bytes:
    try:
        return rename_paths(data.decode("utf-8"), task.workdir, tests, logs).encode()
    except UnicodeDecodeError:
        return data


def _judge(output: str, errors: str, token: str, task: TaskFolder) -> Verdict:
    """Read the runner's last word; without it (a test ended the interpreter, say) nothing has passed."""
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


async def _read_reward(box: Sandbox, logs: str) -> float | None:
    """The number in reward.txt, or the `reward` of reward.json; None when the tests wrote neither."""
    for name in ("reward.txt", "reward.json"):
        try:
            data = await box.read(f"{logs}/{name}", REWARD_BYTES)
        except InputError:
            continue
        try:
            found = json.loads(data)
            reward = float(found["reward"] if isinstance(found, dict) else found)
        except (ValueError, TypeError, KeyError) as error:
            raise EnvironmentFailure(f"terminal: {name} holds no reward: {data[:200]!r}") from error
        if not math.isfinite(reward):
            raise EnvironmentFailure(f"terminal: {name}: the reward must be finite, got {reward}")
        return min(1.0, max(0.0, reward))
    return None
