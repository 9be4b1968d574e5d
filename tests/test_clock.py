"""Nothing waits or measures by the system's clock, which somebody may set: forward or back by an hour."""

import ast
import os
import time
from pathlib import Path

import pytest

from asyncrl import clock
from asyncrl.run.runs import state_of

ROOT = Path(clock.__file__).resolve().parents[1]
SYSTEM_CLOCK = {
    ("time", name) for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime")
} | {("datetime", name) for name in ("now", "utcnow", "today")} | {("date", "today")}  # fmt: skip
ALLOWED = {
    "asyncrl/clock.py": "defines what others read",
    "asyncrl/tls.py": "a certificate's dates, with two days to spare",
    "asyncrl/tracing.py": "OpenTelemetry stamps its other spans by that clock",
    "asyncrl/extensions/agents/gateway/exchange.py": "the field `created` of a reply",
    "asyncrl/extensions/env_adapters/verifiers_episodes.py": "the field `created` of a reply",
}
"""Files that read the system's clock, with the reason."""


def reads_system_clock(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in SYSTEM_CLOCK:
                found.append(f"line {node.lineno}: {owner}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"line {node.lineno}: {one.name}" for one in node.names if one.name.startswith("time")]
    return found


def test_the_system_clock_is_read_where_a_reason_is_given_and_nowhere_else():
    files = [path for folder in ("asyncrl", "services", "envs") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): reads_system_clock(path.read_text()) for path in files}
    assert len(files) > 300
    assert {path: uses for path, uses in found.items() if uses and path not in ALLOWED} == {}
    assert [path for path in ALLOWED if not found[path]] == [], "a reason that is no longer needed"


@pytest.mark.parametrize(
    "source",
    ["import time\ntime.time()", "from time import time", "import datetime\ndatetime.datetime.now()"],
)
def test_a_read_of_the_system_clock_is_found(source):
    assert reads_system_clock(source) != []


def test_stamps_of_a_process_are_as_far_apart_as_they_were_though_the_clock_is_set(monkeypatch):
    before, real = clock.stamp_s(), time.time
    assert abs(before - real()) < 3600
    for hours in (1, -1):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + 3600 * hours)
        assert 0 <= clock.stamp_s() - before < 600


@pytest.mark.parametrize(("hours", "state"), [(0, "running"), (1, "stopped"), (-1, "stopped")])
def test_a_run_writes_when_its_files_are_of_this_moment_not_of_another_clock(tmp_path, hours, state):
    written = tmp_path / "activity.jsonl"
    written.write_text("{}\n")
    os.utime(written, times=(time.time() + 3600 * hours,) * 2)
    assert state_of(tmp_path, {"train": {"num_steps": 4}}) == state
