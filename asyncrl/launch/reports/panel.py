"""A run on a terminal: step, reward, staleness, buffer and processes, as rich draws them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.console import shown
from asyncrl.run.idle_cause import idle_cause
from asyncrl.run.json_lines import last_record
from asyncrl.run.metrics import ProgressLine, latest_steps
from asyncrl.run.observe import RunObserver
from asyncrl.run.runs import RunLines

BARS = "▁▂▃▄▅▆▇█"
CURVE_STEPS = 40
"""How many of the newest rewards are drawn."""
PACE_STEPS = 20
"""Newest steps from whose pace the time that is left is told."""
PLAIN_WIDTH = 200
STYLES = {"running": "bold green", "finished": "bold blue", "stopped": "bold red"}

ShowStep = Callable[[int, dict[str, Any]], None]
"""Called with a step that has been trained, and its metrics."""


def draws_panels(stream: TextIO) -> bool:
    """True where a panel can be drawn: a terminal that can move its cursor, and whose user has not declined colour."""
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "unknown")
    )


class RunPanel:
    """What rich draws of one run, read from its folder each time that it is drawn."""

    def __init__(self, folder: Path, observer: RunObserver | None = None) -> None:
        """observer: the one of this folder, where somebody has it already."""
        self._folder = folder
        self._observer = observer or RunObserver(folder)
        self._lines = RunLines()

    def __rich__(self) -> Group:
        steps = latest_steps(self._observer.steps.refresh())
        sample = next(reversed(self._observer.activity.refresh()), dict[str, Any]())
        restarts = [record["name"] for record in self._observer.restarts.refresh()]
        return Group(
            self._heading(steps),
            *_training(steps),
            *_buffer(sample.get("buffer", {})),
            *self._policies(),
            _processes(sample, restarts),
        )

    def _heading(self, steps: Sequence[Mapping[str, Any]]) -> Text:
        line = self._lines.line(self._folder.resolve().name, self._folder)
        parts = [
            Text(shown(line.name), "bold"),
            Text(line.state, STYLES[line.state]),
            Text(f"step {line.step}/{line.num_steps}"),
        ]
        pace = steps[-PACE_STEPS - 1 :]
        if line.state == "running" and len(pace) > 1:
            step_s = (pace[-1]["time"] - pace[0]["time"]) / (len(pace) - 1)
            parts.append(Text(f"{max(0.0, step_s * (line.num_steps - line.step)):.0f} s left", "dim"))
        return Text("  ").join(parts)

    def _policies(self) -> Iterator[Text]:
        for config in sorted(self._folder.glob("policies/*/config.json")):
            if step := last_record(config.parent / "metrics.jsonl"):
                yield _fields(
                    shown(f"policy {config.parent.name}"),
                    {"step": f"{step['step']}", "reward": _number(step.get("reward/mean"))},
                )


def plain_lines(panel: RunPanel) -> str:
    """Return a panel as lines for a file, which have no width to fit into."""
    console = Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None)
    with console.capture() as drawn:
        console.print(panel)
    return "".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines())


@contextmanager
def steps_shown(folder: Path, num_steps: int, observer: RunObserver) -> Iterator[ShowStep]:
    """Show a run on standard error while it trains: a panel on a terminal, otherwise a line for each step."""
    if not draws_panels(sys.stderr):
        yield ProgressLine(num_steps).show
        return
    # What is printed meanwhile appears above the panel.
    with Live(RunPanel(folder, observer), console=Console(stderr=True), refresh_per_second=1) as live:
        yield lambda step, metrics: live.refresh()


def _training(steps: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    if not steps:
        yield Text("no step has been trained yet", "dim")
        return
    step = steps[-1]
    rewards = [s["reward/mean"] for s in steps[-CURVE_STEPS:] if s.get("reward/mean") is not None]
    reward = {"": f"{_number(step.get('reward/mean'))} {curve(rewards)}"}
    if (success := step.get("success/mean")) is not None:
        reward["success"] = _number(success)
    yield _fields("reward", reward)
    yield _fields(
        "staleness",
        {
            "": f"{step.get('staleness/mean', 0.0):.2f}",
            "max": f"{step.get('staleness/max', 0):.0f}",
            "tokens/s": f"{step.get('tokens_per_s', 0.0):.0f}",
        },
    )
    seconds = {part: f"{step.get(f'time/{part}_s') or 0.0:.2f}" for part in ("wait", "train", "publish")}
    yield _fields("seconds", seconds)


def _buffer(buffer: Mapping[str, Any]) -> Iterator[Text | Table]:
    if not buffer:
        return
    held = sum(buffer.get(state, 0) for state in ("in_flight", "ready", "taken"))
    slots = buffer.get("slots", 0)
    row = Table.grid(padding=(0, 2))
    row.add_row(
        _fields("buffer", {"": f"{held} of {slots} slots"}),
        ProgressBar(total=max(1, slots), completed=min(held, slots), width=20),
        _fields(
            "",
            {state.replace("_", " "): str(buffer.get(state, 0)) for state in ("in_flight", "ready", "taken")},
        ),
    )
    yield row


def _processes(sample: Mapping[str, Any], restarts: Sequence[str]) -> Table | Text:
    """Return a row for each process of the newest sample."""
    cores, memory, pids = (sample.get(name, {}) for name in ("processes", "memory_bytes", "pids"))
    if not sample:
        return Text("what the processes do has not been recorded yet", "dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("process")
    for name in ("pid", "cores", "memory", "restarts"):
        table.add_column(name, justify="right")
    table.add_column("state", no_wrap=True)
    for name in dict.fromkeys((*pids, *cores)):
        engine = sample.get("engines", {}).get(name)
        table.add_row(
            name,
            str(pids.get(name, "")),
            f"{cores[name]:.2f}" if name in cores else "",
            f"{memory[name] / 2**30:.2f} GiB" if name in memory else "",
            str(restarts.count(name) or ""),
            Text("not running", "bold red")
            if pids and name not in pids
            else _engine(engine, sample.get("buffer", {})),
        )
    return table


def _engine(engine: Mapping[str, Any] | None, buffer: Mapping[str, Any]) -> Text:
    if engine is None:
        return Text("")
    text = f"version {engine.get('version', 0)}, {engine.get('running', 0)} running, {engine.get('waiting', 0)} waiting"
    if (used := engine.get("kv_usage")) is not None:
        text += f", KV {used:.0%}"
    idle = idle_cause(engine, buffer)
    return Text(text) + Text(f", idle: {idle}" if idle else "", "yellow")


def curve(values: Sequence[float]) -> str:
    """Return a bar for each value, from the least to the greatest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def _fields(title: str, values: Mapping[str, str]) -> Text:
    text = Text(f"{title:10s}" if title else "", "dim")
    for name, value in values.items():
        text.append(f"{name} " if name else "", "dim")
        text.append(f"{value}  ", "none")
    return text


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
