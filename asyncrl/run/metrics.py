"""What a run shows while it trains: the steps in metrics.jsonl, a progress line, the plot. Loads no torch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.run.json_lines import JsonLines


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the steps of a run's metrics.jsonl, as `latest_steps` orders them."""
    return latest_steps(JsonLines(Path(folder) / "metrics.jsonl").refresh())


def latest_steps(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of steps by step; one that was repeated after a crash counts as it was trained last."""
    latest = {record["step"]: record for record in records if "step" in record}
    return [latest[step] for step in sorted(latest)]


def offered_rewards(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return for each step the mean reward of all episodes that were finished since the step before.

    Groups that were dropped for want of a signal are among them, which the mean of the trained groups leaves out: that
    one stays near the middle however good the policy is. A step in which no group was finished has the mean of its
    own groups.
    """
    found, before = [], (0.0, 0.0)
    for step in steps:
        now = (step.get("buffer/offered_episodes", 0.0), step.get("buffer/offered_reward_sum", 0.0))
        episodes, reward = now[0] - before[0], now[1] - before[1]
        found.append(reward / episodes if episodes > 0 else step.get("reward/mean", math.nan))
        before = now
    return found


class ProgressLine:
    """One line that is rewritten on a terminal, or one line per step in a log."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.start = time.monotonic()
        self.first_step: int | None = None
        self.before: dict[str, Any] = {}

    def show(self, step: int, metrics: dict[str, Any]) -> None:
        """Print after `step` steps of `num_steps`."""
        if self.first_step is None:
            self.first_step = step - 1
        done = step - self.first_step
        left_s = (time.monotonic() - self.start) / done * (self.num_steps - step)
        reward = offered_rewards([self.before, metrics])[-1]
        self.before = metrics
        line = (
            f"step {step}/{self.num_steps}  reward {reward:.3f}  "
            f"staleness {metrics.get('staleness/mean', 0.0):.2f} (max {metrics.get('staleness/max', 0):.0f})  "
            f"{metrics.get('tokens_per_s', 0.0):.0f} tokens/s  "
            f"buffer {metrics.get('buffer/ready', 0):.0f} ready {metrics.get('buffer/in_flight', 0):.0f} running  "
            f"{left_s:.0f} s left"
        )
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="\n" if step == self.num_steps else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def plot_rewards(folder: str | Path, before: float | None = None, after: float | None = None) -> Path | None:
    """Draw `reward.png` from a run's metrics; None without a step."""
    steps = read_metrics(folder)
    if not steps:
        return None
    from matplotlib.figure import Figure  # not pyplot, which takes twice as long to load

    x = [record["step"] for record in steps]
    # With a layout that looks for its margins it would be drawn twice.
    figure = Figure(figsize=(7, 4))
    axis = figure.add_axes((0.12, 0.13, 0.85, 0.83))
    axis.plot(x, offered_rewards(steps), marker=".", label="reward of all episodes")
    for value, place, label in ((before, x[0] - 1, "held-out before"), (after, x[-1] + 1, "held-out after")):
        if value is not None:
            axis.scatter([place], [value], zorder=3, label=f"{label}: {value:.3f}")
    axis.set_xlabel("training step")
    axis.set_ylabel("mean reward")
    axis.grid(alpha=0.3)
    axis.legend()
    path = Path(folder) / "reward.png"
    figure.savefig(path, dpi=120)
    return path
