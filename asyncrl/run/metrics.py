"""What a run shows while it trains: the steps in metrics.jsonl, a progress line, the plot. Loads no torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
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


class ProgressLine:
    """One line that is rewritten on a terminal, or one line per step in a log."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.start = time.monotonic()
        self.first_step: int | None = None

    def show(self, step: int, metrics: dict[str, Any]) -> None:
        """Print after `step` steps of `num_steps`."""
        if self.first_step is None:
            self.first_step = step - 1
        done = step - self.first_step
        left_s = (time.monotonic() - self.start) / done * (self.num_steps - step)
        line = (
            f"step {step}/{self.num_steps}  reward {metrics.get('reward/mean', float('nan')):.3f}  "
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
    axis.plot(x, [record["reward/mean"] for record in steps], marker=".", label="reward of trained groups")
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
