"""What a run recorded, in Chrome's trace format, which ui.perfetto.dev opens. Pure.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
Times are microseconds since the first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from asyncrl.extensions.monitor.timeline import down_spans, idle_causes, trainer_spans

RUN, ENGINES, PROCESSES, ENVIRONMENTS = 1, 2, 3, 4
"""Numbers of the groups of rows."""
_GROUPS = {RUN: "run", ENGINES: "engines", PROCESSES: "processes", ENVIRONMENTS: "environments"}
_BUFFER = ("in_flight", "ready", "taken")
LONGEST_GAP_S = 10.0
"""Samples further apart than this are of two launches of the run."""


def chrome_trace(
    steps: Sequence[Mapping[str, Any]],
    activity: Sequence[Mapping[str, Any]],
    restarts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the trace of a run's records, as JSON can hold it."""
    events = [*_trainer(steps), *_services(activity), *_counters(activity), *_down(restarts)]
    start = min((event["ts"] for event in events), default=0.0)
    for event in events:
        event["ts"] = round((event["ts"] - start) * 1e6)
        if "dur" in event:
            event["dur"] = round(event["dur"] * 1e6)
    rows: dict[tuple[int, str], int] = {}
    for event in events:
        # A row's name becomes its number, which the format asks for.
        event["tid"] = rows.setdefault((event["pid"], event["tid"]), len(rows) + 1)
    names = [_name("process_name", pid, 0, name) for pid, name in _GROUPS.items()]
    names += [_name("thread_name", pid, number, row) for (pid, row), number in rows.items()]
    return {"traceEvents": [*names, *sorted(events, key=lambda e: e["ts"])], "displayTimeUnit": "ms"}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, pid: int, row: str, start: float, end: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": row,
        "ts": start,
        "dur": max(0.0, end - start),
        "args": args,
    }


def _trainer(steps: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for span in trainer_spans(steps):
        yield _span(span["what"], RUN, "trainer", span["start"], span["end"], step=span["step"])
    for step in steps:
        version = {"ph": "i", "s": "g", "name": f"version {step['step']}", "pid": RUN, "tid": "trainer"}
        yield version | {"ts": step["time"], "args": {"reward": step.get("reward/mean")}}


def _services(activity: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each engine and environment service did, as long as it did the same: work, or wait for a cause. A
    sample holds until the next one."""
    open_spans: dict[str, tuple[int, str, float, float]] = {}
    for (sample, following), causes in zip(pairwise(activity), idle_causes(activity), strict=False):
        now, end = sample["time"], min(following["time"], sample["time"] + LONGEST_GAP_S)
        for name, cause in causes.items():
            group, work = (ENGINES, "decode") if name in sample.get("engines", {}) else (ENVIRONMENTS, "step")
            what = f"idle: {cause}" if cause else work
            _, before, start, until = open_spans.get(name, (group, what, now, now))
            if (before, until) != (what, now):
                yield _span(before, group, name, start, until)
                start = now
            open_spans[name] = (group, what, start, end)
    for name, (group, what, start, end) in open_spans.items():
        yield _span(what, group, name, start, end)


def _counters(activity: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for sample in activity:
        buffer = sample.get("buffer", {})
        values = (
            {"groups in the buffer": {state: buffer.get(state, 0) for state in _BUFFER}} if buffer else {}
        )
        for name, engine in sample.get("engines", {}).items():
            values[f"{name} requests"] = {kind: engine.get(kind, 0) for kind in ("running", "waiting")}
        for name, counted in values.items():
            yield _counter(name, ENGINES if name.endswith("requests") else RUN, sample["time"], counted)
        for name, cores in sample.get("processes", {}).items():
            yield _counter(f"{name} cores", PROCESSES, sample["time"], {"cores": cores})
        for name, size in sample.get("memory_bytes", {}).items():
            yield _counter(f"{name} memory", PROCESSES, sample["time"], {"MiB": round(size / 2**20, 1)})


def _counter(name: str, pid: int, when: float, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "tid": name, "ts": when, "args": dict(values)}


def _down(restarts: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for span in down_spans(restarts):
        yield _span("down", PROCESSES, span["process"], span["start"], span["end"], why=span["why"])
