"""Task folders of several steps in Harbor's layout, whose solutions earn what is said here: most are not perfect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

WRITE = "printf '%s' \"$reward\" > /logs/verifier/reward.txt"
"""The end of a test."""


@dataclass(frozen=True)
class HarborStep:
    solve: str
    check: str = ""
    """Sets `reward`; "" where the task's own tests judge."""
    toml: str = ""
    workdir: Mapping[str, str] = field(default_factory=dict)
    tests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HarborSteps:
    steps: Mapping[str, HarborStep]
    oracle: float
    nop: float
    toml: str = ""
    check: str = ""
    """Of the tests that all steps share."""


def full(condition: str) -> str:
    return f"reward=0; {condition} && reward=1"


def half(first: str, second: str) -> str:
    return f"reward=0; {first} && reward=0.5; {first} && {second} && reward=1"


STEPS = {
    "mean": HarborSteps(
        {
            "one": HarborStep("echo 1 > /app/count", full("grep -qx 1 /app/count")),
            # Nothing of the tests is there, and what was done is.
            "two": HarborStep(
                "cd /app && find /tests /logs/verifier -mindepth 1 2>/dev/null | wc -l > seen; echo 2 >> count",
                half('test "$(cat /app/seen)" = 0', 'test "$(wc -l < /app/count)" -eq 3'),
            ),
            "three": HarborStep(
                "cd /app && ./double count > doubled",
                full("grep -qx 4 /app/doubled && grep -qx set /app/up"),
                workdir={
                    "double": '#!/bin/bash\nwhile read -r n; do echo $((n * 2)); done < "$1"\n',
                    "setup.sh": "chmod a+x /app/double; echo set > up\n",
                },
            ),
        },
        oracle=2.5 / 3,
        nop=0.0,
    ),
    "gated": HarborSteps(
        {
            "one": HarborStep("touch /app/one", full("test -e /app/one"), "min_reward = 0.0"),
            "two": HarborStep("touch /app/two", half("test -e /app/two", "test -e /app/more"), "min_reward = 0.8"),
            "three": HarborStep("touch /app/three", full("test -e /app/three")),
        },
        oracle=0.75,
        nop=0.0,
    ),
    "final": HarborSteps(
        {
            "one": HarborStep("true", half("test -d /app", "test -e /app/one"), "min_reward = {reward = 0.5}"),
            "two": HarborStep("touch /app/two", full("test -e /app/two")),
        },
        oracle=1.0,
        nop=0.0,
        toml='multi_step_reward_strategy = "final"\n',
    ),
    "cut": HarborSteps(
        {
            "one": HarborStep("true", half("test -d /app", "test -e /app/one"), "min_reward = 0.6"),
            "two": HarborStep("touch /app/two", full("test -e /app/two")),
        },
        oracle=0.5,
        nop=0.5,
        toml='multi_step_reward_strategy = "final"\n',
    ),
    "shared": HarborSteps(
        {
            "one": HarborStep("echo a > /app/said", tests={"expected": "a\n"}),
            "two": HarborStep(
                "echo b > /app/said", tests={"expected": "b\n"}, toml='[steps.verifier.env]\nWORD = "second"'
            ),
        },
        oracle=0.75,
        nop=0.0,
        toml='[verifier.env]\nWORD = "first"\nOTHER = "kept"\n',
        check=half('test "$(cat /tests/expected)" = "$(cat /app/said)"', 'test "$WORD-$OTHER" = first-kept'),
    ),
}  # fmt: skip


def write_steps(folder: Path, image: str = "debian:bookworm", names: tuple[str, ...] = tuple(STEPS)) -> Path:
    """Write the task folders below `folder`. image: what their Dockerfiles start from."""
    for name in names:
        task = STEPS[name]
        root, tables = _keys_and_tables(task.toml)
        for step_name, step in task.steps.items():
            keys, more = _keys_and_tables(step.toml)
            tables += f'\n[[steps]]\nname = "{step_name}"\n{keys}\n{more}\n'
            _write_step(folder / name / "steps" / step_name, step_name, step)
        _write(folder / name, {"task.toml": f'version = "1.0"\n{root}\n{tables}'})
        _write(folder / name, {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
        if task.check:
            _write(folder / name, {"tests/test.sh": f"#!/bin/bash\n{task.check}\n{WRITE}\n"})
    return folder


def _keys_and_tables(toml: str) -> tuple[str, str]:
    keys, found, tables = f"\n{toml}".partition("\n[")
    return keys, f"[{tables}" if found else ""


def _write_step(place: Path, name: str, step: HarborStep) -> None:
    _write(
        place,
        {"instruction.md": f"Do step {name} in /app.\n", "solution/solve.sh": f"#!/bin/bash\n{step.solve}\n"},
    )
    if step.check:
        _write(place, {"tests/test.sh": f"#!/bin/bash\n{step.check}\n{WRITE}\n"})
    _write(place / "tests", step.tests)
    _write(place / "workdir", step.workdir)


def _write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
