"""A real pretrained model's learning curve, at several limits of staleness and for the same time each."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from acceptance.context import START_S, Context, NotRun, metrics
from acceptance.measure import Found, tried
from bench.report import Figure, Omitted

LIMITS = (0, 1, 4)
PIECES = 5
"""Parts of the time whose mean rewards are the points of a curve."""
ENDED_S = 90.0
"""In which an interrupted run saves its checkpoint and ends."""
POLL_S = 0.25
HELD_OUT = 200
"""Problems that are played before and after."""
ON_A_GPU = ("model.dtype=bfloat16", "run.threads=0", "engine.max_num_seqs=256", f"eval.tasks={HELD_OUT}")
ON_A_CPU = (
    "run.threads=1", "sft.steps=2", "sft.heldout_rows=4", "rollout.group_size=2", "buffer.groups_per_step=2",
    "eval.tasks=4", "train.micro_batch_tokens=1024", "engine.max_num_seqs=16",
)  # fmt: skip
"""Enough to see that it works."""
ALWAYS = (
    "train.num_steps=100000",
    "train.checkpoint_every=0",
    "buffer.drop_no_signal=false",
    "buffer.wait_timeout_s=120",
)


def smollm2_staleness(context: Context) -> Iterator[Found]:
    """SmolLM2-135M's learning curve on word problems at staleness limits 0, 1 and 4, each for the same time after its
    first step; then, where time is left, what it solves of held-out ones."""
    if context.data is None:
        raise NotRun("needs --data FILE, the rows of SVAMP")
    curve_s = context.curve_s or (60.0 if context.gpus else 20.0)
    runs = {}
    for limit in LIMITS:
        runs[limit] = context.folder / "runs" / f"staleness-{limit}-{time.time_ns()}"
        yield from tried(f"limit {limit}", partial(_curve, context, runs[limit], limit, curve_s))
    for limit, run in runs.items():
        yield from tried(f"limit {limit}: held out", partial(_held_out, context, run, limit))


def _curve(context: Context, run: Path, limit: int, curve_s: float) -> Iterator[Found]:
    _train(
        context, run, curve_s, "smollm2_svamp", f"run.name={run.name}", "run.folder=runs",
        f"data.train={context.data}", f"model.path={context.start_model}", f"buffer.max_staleness={limit}",
        *(ON_A_GPU if context.gpus else ON_A_CPU), *ALWAYS,
    )  # fmt: skip
    if context.kept is not None:
        place = context.kept / f"limit-{limit}"
        place.mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "config.json"):
            shutil.copy(run / name, place / name)
    yield from curve(limit, metrics(run), curve_s)


def curve(limit: int, rows: Sequence[dict[str, Any]], curve_s: float) -> Iterator[Found]:
    """Yield what a run's metrics say of the steps that ended within `curve_s` after the first one."""
    start = rows[0]["time"]
    inside = [row for row in rows if row["time"] <= start + curve_s]
    last = inside[-1]
    yield Figure(f"limit {limit}: steps", float(len(inside)))
    if len(inside) > 1:
        pace = (last["time"] - start) / (len(inside) - 1)
        yield Figure(f"limit {limit}: a step", pace, "s")
    stale = [row["staleness/mean"] for row in inside[1:] if row.get("staleness/mean") is not None]
    if stale:
        yield Figure(f"limit {limit}: staleness", sum(stale) / len(stale), "versions")
    for piece in range(PIECES):
        # What has come in until a moment is what the last step up to it says.
        begins, stops = (curve_s * (piece + more) / PIECES for more in (0, 1))
        label = f"limit {limit}: right answers from {begins:.0f} to {stops:.0f} s"
        before, after = (
            _offered([row for row in inside if row["time"] <= start + moment]) for moment in (begins, stops)
        )
        if after[1] > before[1]:
            yield Figure(label, (after[0] - before[0]) / (after[1] - before[1]))
        else:
            yield Omitted(label, "no step ended then")


def _offered(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the reward and the number of all episodes that had come in, dropped ones included."""
    row = rows[-1]
    return row["buffer/offered_reward_sum"], row["buffer/offered_episodes"]


def _train(context: Context, run: Path, curve_s: float, *words: str) -> None:
    """Train until so many seconds after the first step. Raises `RuntimeError` with the end of what it said."""
    log = context.folder / f"{run.name}.log"
    with log.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", "train", *words],
            cwd=context.folder,
            stdout=output,
            stderr=output,
        )
        try:
            _wait(child, lambda: bool(_lines(run)), 2 * START_S, log)
            end = _lines(run)[0]["time"] + curve_s
            _wait(child, lambda: time.time() >= end, curve_s + START_S, log)
            child.send_signal(signal.SIGINT)
            child.wait(ENDED_S)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


def _wait(child: subprocess.Popen[Any], done: Any, limit_s: float, log: Path) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if child.poll() is not None or time.monotonic() > deadline:
            ended = "is slow" if child.returncode is None else f"exit code {child.returncode}"
            raise RuntimeError(f"{ended}: {' / '.join(log.read_text().strip().splitlines()[-4:])}")
        time.sleep(POLL_S)


def _lines(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    # The last line may not be whole yet.
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _held_out(context: Context, run: Path, limit: int) -> Iterator[Found]:
    """Yield the share of held-out problems that were solved before, and are after: a run that has its steps plays
    them."""
    context.resume(run, f"train.num_steps={len(_lines(run))}")
    summary = json.loads((run / "summary.json").read_text())
    for when in ("before", "after"):
        found = summary[f"eval_{when}"]
        yield Figure(f"limit {limit}: held out, {when}", found["mean"])
        yield Figure(f"limit {limit}: held out, {when}, low", found["ci_low"])
        yield Figure(f"limit {limit}: held out, {when}, high", found["ci_high"])
