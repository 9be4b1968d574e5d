"""What recording trajectories costs a trainer, and how fast a folder of many opens in the monitor.

    python scripts/bench/bench_trajectories.py --trajectories 100000 --json FILE

Recording: training steps with and without recording, by turns in one process. Its cost to the trainer is the time that
the training thread spends in it; the writer's thread takes processor time beside that. Both are shares of a step.
Opening: what the page of trajectories asks for first, and with filters, of a run of `--trajectories` rows.
Page: the same in Chromium, from a click until the rows are drawn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from report import describe_machine, write_report

from asyncrl.config import load_config
from asyncrl.data.table import TrajectoryTable, TrajectoryWriter
from asyncrl.data.transcript import encode_transcript
from asyncrl.extensions.monitor.episodes import EpisodeTable
from asyncrl.types import NOT_SAMPLED, Group, Status, Task, Trajectory, Turn

GROUPS, SIZE, GIVEN, SAMPLED, TURNS = 4, 8, 48, 32, 4
"""Of a step that is trained: groups, episodes of each, tokens of a turn that are given and sampled, turns."""
LINK = re.compile(r"http://\S+#token=\S+")
FILTERS: dict[str, dict[str, str]] = {
    "reward": {"min_reward": "0.9"},
    "environment and length": {"env": "office", "min_num_tokens": "60"},
    "status": {"status": "truncated"},
    "version": {"min_version_admitted": "150"},
    "text": {"text": "parcel 4711"},
}


def episode(
    rng: np.random.Generator, task: str, index: int, step: int, given: int, sampled: int
) -> Trajectory:
    """Return an episode of `TURNS` turns with a conversation."""
    mask = np.tile(np.r_[np.zeros(given, bool), np.ones(sampled, bool)], TURNS)
    length = len(mask)
    reward = float(rng.integers(0, 11)) / 10
    messages = []
    for turn in range(TURNS):
        call = {
            "id": f"c{turn}",
            "function": {"name": "look", "arguments": json.dumps({"at": f"shelf {turn}"})},
        }
        messages += [
            {"role": "user", "content": f"Where is parcel {rng.integers(0, 10000)} of {task}?"},
            {"role": "assistant", "content": "I look at the next shelf.", "tool_calls": [call]},
        ]
    return Trajectory(
        task_id=task,
        episode_index=index,
        token_ids=rng.integers(0, 350, length).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -rng.random(length) - 5, 0).astype(np.float32),
        versions=np.where(mask, step, NOT_SAMPLED).astype(np.int32),
        turns=tuple(Turn(k * (given + sampled) + given, (k + 1) * (given + sampled)) for k in range(TURNS)),
        reward=reward,
        status=Status.FINISHED if rng.random() < 0.9 else Status.TRUNCATED,
        success=reward > 0.5,
        timing={"wall_s": float(rng.random())},
        conversation=encode_transcript(messages, {2 * k + 1: k for k in range(TURNS)}),
    )


def groups_of(rng: np.random.Generator, step: int, count: int, given: int, sampled: int) -> list[Group]:
    envs = ("office", "search")
    tasks = [Task(f"t{step}-{number}", envs[number % 2], number) for number in range(count)]
    return [
        Group(f"g-{task.id}", task, step,
              tuple(episode(rng, task.id, index, step, given, sampled) for index in range(SIZE)), "w")
        for task in tasks
    ]  # fmt: skip


def measure_recording(rounds: int) -> dict[str, Any]:
    """Train the same batch again and again, every other time with recording. The first of each is a warm-up."""
    from asyncrl.algo.objective import build_objective
    from asyncrl.config import TrainConfig
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.loop.publication import token_values
    from asyncrl.train.models.loading import load_policy
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
    from asyncrl.train.step.auxiliary_models import AuxiliaryModels
    from asyncrl.train.step.step import train_step
    from asyncrl.train.step.step_batch import build_step_batch
    from asyncrl.train.step.step_settings import StepSettings

    groups = groups_of(np.random.default_rng(0), 0, GROUPS, GIVEN, SAMPLED)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as name:
        model = Path(name) / "model"
        tokenizer = build_tokenizer(["the parcel is on the next shelf of the office"] * 20, 400, 512)
        save(model, build_model(400, 128, 4, 4, 512, tokenizer.eos_token_id, seed=0), tokenizer)
        engine = TrainEngine(load_policy(str(model), "float32"), TrainConfig(), "float32")
        objective = build_objective({"preset": "decoupled_ppo", "entropy_coef": 1e-3})
        settings = StepSettings(1.0, 8192, 1, horizon=512.0)
        writer = TimedWriter(Path(name) / "trajectories")
        plain, recorded, spent = [], [], []
        for number in range(2 * rounds + 2):
            start = time.perf_counter()
            batch = build_step_batch(groups, 0, 0)
            report = train_step(engine, objective, AuxiliaryModels(objective), batch, settings, 1e-6)
            trained = time.perf_counter()
            if number % 2:
                writer.put(number, batch.groups, token_values(batch, report))
                spent.append(time.perf_counter() - trained)
            (recorded if number % 2 else plain).append(time.perf_counter() - start)
        writer.close()
    step_s = statistics.median(plain[1:])
    return {
        "tokens of a step": sum(t.num_tokens for group in groups for t in group.trajectories),
        "step_s": round(step_s, 3),
        "step_with_recording_s": round(statistics.median(recorded[1:]), 3),
        "training_thread_share": round(statistics.median(spent[1:]) / step_s, 6),
        "writer_thread_share": round(statistics.median(writer.processor_s[1:]) / step_s, 4),
    }


class TimedWriter(TrajectoryWriter):
    """Notes the processor time of the writer's thread for each step."""

    def __init__(self, folder: Path) -> None:
        self.processor_s: list[float] = []
        super().__init__(folder)
        write = self.table.write

        def timed(*item: Any) -> Path:
            start = time.thread_time()
            path = write(*item)
            self.processor_s.append(time.thread_time() - start)
            return path

        self.table.write = timed  # type: ignore[method-assign]


@contextmanager
def run_of(trajectories: int) -> Iterator[Path]:
    """Yield the folder of a run with about so many trajectories."""
    per_step = 64
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as name:
        folder = Path(name) / "many"
        table = TrajectoryTable(folder / "trajectories")
        (folder / "config.json").write_text(load_config("gridworld_grpo").model_dump_json())
        groups = groups_of(np.random.default_rng(0), 0, per_step, 12, 8)
        for step in range(1, max(1, trajectories // (per_step * SIZE)) + 1):
            # The numbers of rows, files and bytes matter here, and new episodes for each step would take minutes.
            table.write(step, [dataclasses.replace(g, id=f"{g.id}-{step}", version=step) for g in groups])
        yield folder


def measure_opening(folder: Path) -> dict[str, Any]:
    """Time the first page of a run's trajectories in seconds, and each filter's, without a browser."""
    files = list((folder / "trajectories").iterdir())
    start = time.perf_counter()
    opened = EpisodeTable(folder)
    total = opened.page({})["total"]
    opened.choices()
    size = sum(path.stat().st_size for path in files)
    found: dict[str, Any] = {"trajectories": total, "files": len(files), "MiB": round(size / 2**20, 1)}
    found["open_s"] = round(time.perf_counter() - start, 3)
    for label, filters in FILTERS.items():
        start = time.perf_counter()
        rows = opened.page(filters)["total"]
        found[f"filter by {label}"] = {"s": round(time.perf_counter() - start, 3), "rows": rows}
    return found


def measure_page(folder: Path) -> dict[str, Any]:
    """Time the page of trajectories in Chromium: from the click on its link until its rows are drawn, and from Enter in
    each filter until the new ones are. Times in seconds."""
    from playwright.sync_api import sync_playwright

    from asyncrl.envs.browser.chromium import find_chromium

    argv = [sys.executable, "-m", "asyncrl", "monitor", str(folder), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as monitor:
        try:
            assert monitor.stdout is not None
            link = next(found.group() for line in monitor.stdout if (found := LINK.search(line)))
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.set_default_timeout(120_000)
                page.goto(link)
                page.get_by_role("link", name=folder.name, exact=True).click()
                page.get_by_role("link", name="Trajectories").wait_for()
                found = {
                    "open_s": _drawn_s(page, lambda: page.get_by_role("link", name="Trajectories").click())
                }
                for label, filters in FILTERS.items():
                    found[f"filter by {label}"] = _filtered_s(page, filters)
                browser.close()
        finally:
            monitor.terminate()
    return found


def _filtered_s(page: Any, filters: dict[str, str]) -> float:
    """Clear the form, fill these filters in and press Enter."""
    _drawn_s(page, lambda: page.get_by_role("button", name="Clear").click())
    for name, value in filters.items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("one => one.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    return _drawn_s(page, lambda: page.get_by_role("button", name="Filter").click())


def _drawn_s(page: Any, act: Callable[[], Any]) -> float:
    """Return the seconds from an action until the rows that it asks for are drawn."""
    page.evaluate("document.querySelector('tbody')?.setAttribute('data-old', '')")
    start = time.perf_counter()
    act()
    drawn = page.locator("tbody:not([data-old]) tr").or_(page.get_by_text("No trajectory passes"))
    drawn.first.wait_for()
    return round(time.perf_counter() - start, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=100_000, help="rows of the folder (100000)")
    parser.add_argument("--rounds", type=int, default=5, help="steps with and without recording (5)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
        "recording": measure_recording(args.rounds),
    }
    with run_of(args.trajectories) as folder:
        result["opening"] = measure_opening(folder)
        result["page"] = measure_page(folder)
    result["load"] = [round(one, 1) for one in os.getloadavg()]
    write_report(result, args.json)


if __name__ == "__main__":
    main()
