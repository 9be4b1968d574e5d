"""When the trainer worked, waited and published, and when processes were down: spans of time. Pure.

A step's record holds the time at which the trainer was done with it and the seconds of its three parts, which came one
after the other: waiting for groups, training, standing still for publishing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncrl.run.idle_cause import idle_cause

PARTS = ("wait", "train", "publish")


def trainer_spans(steps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"what", "start", "end", "step"}` of every part of every step, in seconds since 1970."""
    spans = []
    for step in steps:
        end = step["time"]
        for part in reversed(PARTS):
            start = end - (step.get(f"time/{part}_s") or 0.0)
            spans.append({"what": part, "start": start, "end": end, "step": step["step"]})
            end = start
    return sorted(spans, key=lambda span: span["start"])


def down_spans(restarts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"process", "start", "end", "why"}` of every death, from the supervisor's records of restarts."""
    return [
        {
            "process": event["name"],
            "start": event["time"] - event.get("down_s", 0.0),
            "end": event["time"],
            "why": event.get("reason") or event.get("why", ""),
        }
        for event in restarts
    ]


def environments_idle_cause(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return why an environment service has nothing to do, from one sample of the run's activity and the one before
    it; "" if it has. Both hold its `sessions`, those that are `stepping`, and the `steps` since its start."""
    if now.get("stepping", 0) or now.get("steps", 0) > before.get("steps", 0):
        return ""
    return "episodes wait for the policy" if now.get("sessions", 0) else "no episode is played"


def idle_causes(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return of each sample of the run's activity why engines and environment services idled, "" for those that worked,
    by name."""
    found = []
    before: Mapping[str, Any] = {}
    for sample in samples:
        buffer = sample.get("buffer", {})
        causes = {name: idle_cause(engine, buffer) for name, engine in sample.get("engines", {}).items()}
        for name, service in sample.get("environments", {}).items():
            causes[name] = environments_idle_cause(service, before.get("environments", {}).get(name, service))
        found.append(causes)
        before = sample
    return found
