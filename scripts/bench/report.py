"""What every benchmark leaves: its result on the console and, where asked for, in a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


def write_report(result: dict[str, Any], path: Path | None) -> None:
    """Print the result as JSON, and write it to `path` as well if there is one."""
    text = json.dumps(result, indent=2)
    print(text)
    if path:
        path.write_text(text + "\n")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Omitted:
    """What a part was to measure and did not."""

    name: str
    reason: str
    failed: bool = False
    """Whether it was tried; otherwise this machine has not what it takes."""


@dataclass(slots=True)
class Record:
    """What became of one part of a check."""

    name: str
    status: str
    """`PASSED`, `FAILED` or `NOT_RUN`."""
    reason: str = ""
    """Why it failed or was not run, or what was run in its place."""
    figures: list[Figure] = field(default_factory=list)
    omitted: list[Omitted] = field(default_factory=list)
    """What of the part was not measured, and why."""
    wall_s: float = 0.0
    date: str = ""
    machine: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Return what `to_json` described."""
        omitted = [Omitted(**one) for one in data.get("omitted", ())]
        return cls(**data | {"figures": [Figure(**one) for one in data["figures"]], "omitted": omitted})


def describe_machine() -> str:
    """Return processor architecture, cores and GPUs in a few words."""
    gpus: list[str] = []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        gpus = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        pass
    return f"{platform.machine()}, {os.cpu_count()} cores, {'; '.join(gpus) or 'no GPU'}"


def as_table(records: list[Record]) -> str:
    """Return the records as a Markdown table."""
    lines = ["| part | result | figures |", "| --- | --- | --- |"]
    for record in records:
        text = f"{record.status}: {record.reason}" if record.reason else record.status
        figures = "; ".join(f"{one.name} {one.value:,.4g} {one.unit}".rstrip() for one in record.figures)
        lines.append(f"| {record.name} | {text.replace('|', '/')} | {figures} |")
    return "\n".join(lines)
