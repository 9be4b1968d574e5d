"""Simulated layouts as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncrl.extensions.simulation.cluster import Idle, Outcome
from asyncrl.extensions.simulation.search import Candidate

SHOWN = 8
LEAST = 0.02
"""Causes of idle time below this share are not shown."""
HEADER = (
    f"{'layout':42} {'groups/h':>9} {'step s':>8} {'engine':>7} {'trainer':>8} {'stale':>6} {'GPU h/1k':>9}"
)


def outcome_text(name: str, outcome: Outcome, gpus: int) -> str:
    """Return one line of the table."""
    cost = f"{1000 * gpus / outcome.groups_per_hour:.2f}" if gpus else "-"
    return (
        f"{name:42} {outcome.groups_per_hour:9,.0f} {outcome.step_s:8.2f} {outcome.engines.busy:7.0%} "
        f"{outcome.trainer.busy:8.0%} {outcome.staleness_mean:6.2f} {cost:>9}"
    )


def idle_text(role: str, idle: Idle) -> str:
    """Return why a role did nothing."""
    causes = [
        f"{share:.0%} {cause}"
        for cause, share in sorted(idle.causes.items(), key=lambda one: -one[1])
        if share >= LEAST
    ]
    return f"{role}: busy {idle.busy:.0%}" + (f", {', '.join(causes)}" if causes else "")


def layout_name(candidate: Candidate) -> str:
    """Return a layout in a few words."""
    layout = candidate.layout
    split = f" of {layout.tensor_parallel}" if layout.tensor_parallel > 1 else ""
    if layout.by_turns:
        return f"{layout.schedule}, {layout.trainer_gpus} GPUs by turns, engines{split or ' of 1'}"
    return f"{layout.schedule}, trainer {layout.trainer_gpus}, {layout.engines} engine(s){split}"


def candidates_text(candidates: Sequence[Candidate]) -> str:
    """Return the table of the best layouts, and what the best one looks like in a recipe."""
    best = candidates[0]
    lines = [HEADER]
    lines += [outcome_text(layout_name(one), one.outcome, one.layout.gpus) for one in candidates[:SHOWN]]
    if len(candidates) > SHOWN:
        lines.append(f"... and {len(candidates) - SHOWN} slower ones")
    lines += ["", f"fastest: {layout_name(best)}"]
    lines += [idle_text("engines", best.outcome.engines), idle_text("trainer", best.outcome.trainer)]
    lines += ["", "in a recipe, or after it on the command line:", *(f"  {c}" for c in best.layout.changes())]
    return "\n".join(lines)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome for `--json`."""
    return {
        "groups_per_hour": outcome.groups_per_hour,
        "tokens_per_s": outcome.tokens_per_s,
        "step_s": outcome.step_s,
        "staleness_mean": outcome.staleness_mean,
        "staleness_max": outcome.staleness_max,
        "mean_batch": outcome.mean_batch,
        "engines": {"busy": outcome.engines.busy, "idle": outcome.engines.causes},
        "trainer": {"busy": outcome.trainer.busy, "idle": outcome.trainer.causes},
        "groups": outcome.counts,
    }
