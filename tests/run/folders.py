"""Run folders as a run leaves them, without the run: written by the classes that write those of real runs."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import load_config
from asyncrl.data.table import TokenValues, TrajectoryTable
from asyncrl.data.transcript import encode_transcript
from asyncrl.run.checkpoints import MARKER
from asyncrl.types import Group, Task, Trajectory
from tests.train.factories import group

WORDS = ("north", "south", "east", "west")
EVALUATION = {
    "mean": 0.4, "ci_low": 0.3, "ci_high": 0.5, "tasks": 100, "samples": 1, "success": 0.5,
    "success_ci": [0.4, 0.6], "pass_at": {"1": 0.5}, "failed": {}, "truncated": 0,
}  # fmt: skip


def make_run(folder: Path, steps: int = 3, groups: int = 2, overrides: tuple[str, ...] = ()) -> Path:
    """Write a run that has trained `steps` of 10 steps, on `groups` groups of four episodes each."""
    folder.mkdir(parents=True)
    config = load_config("gridworld_grpo", ["train.num_steps=10", *overrides])
    (folder / "config.json").write_text(config.model_dump_json())
    (folder / "eval_before.json").write_text(json.dumps(EVALUATION))
    table = TrajectoryTable(folder / "trajectories")
    for step in range(1, steps + 1):
        add_step(folder, step)
        written = [talking(group(f"t{step}-{g}", [0.0, 1.0, 0.5, 1.0], step - 1)) for g in range(groups)]
        table.write(step, written, token_values(written))
    log = folder / "logs" / "engine-0.log"
    log.parent.mkdir()
    log.write_text("the engine serves\n")
    checkpoint = folder / "checkpoints" / f"step-{steps:06d}"
    checkpoint.mkdir(parents=True)
    vocabulary = {f"word{i}": i for i in range(246)} | {word: 246 + i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="word0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    (checkpoint / MARKER).touch()
    write_ledger(folder)
    return folder


def long_ago(folder: Path, age_s: float = 3600.0) -> None:
    """Make a run one that last wrote `age_s` ago."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - age_s,) * 2)


def add_activity(folder: Path, **more: Any) -> None:
    """Append a line to what the run's processes do: a trainer that works, and an engine that waits."""
    engine = {"running": 0, "waiting": 0, "kv_usage": 0.25, "paused": False, "version": 3}
    line = {
        "time": 1000.0, "engines": {"engine-0": engine},
        "environments": {"env": {"sessions": 4, "stepping": 1, "steps": 40}},
        "buffer": {"version": 3, "pending": 5, "in_flight": 1, "ready": 2, "taken": 1, "slots": 8},
        "pids": {"trainer": 41, "engine-0": 42}, "processes": {"trainer": 0.5, "engine-0": 1.25, "env": 0.0},
        "memory_bytes": {"trainer": 2**30, "engine-0": 3 * 2**30}, "cores": 2, "cpu": 0.9, "memory": 0.5,
        "counts": {"rollout": 2, "env": 1, "engine": 1}, **more,
    }  # fmt: skip
    with open(folder / "activity.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def token_values(groups: list[Group]) -> TokenValues:
    """Return advantages of 2, log-probabilities of -5 and entropies of 1.5 for all sampled tokens of these groups."""
    rows = [t for one in groups for t in one.trajectories]
    values = {"advantages": 2.0, "policy_logprobs": -5.0, "entropies": 1.5}
    columns = {
        name: [np.full(t.num_sampled, value, np.float32) for t in rows] for name, value in values.items()
    }
    return TokenValues(rows, columns)


def add_step(folder: Path, step: int, **metrics: Any) -> None:
    """Append a step to the run's metrics, a second after the one before."""
    record = {
        "step": step, "time": 1000.0 + step, "reward/mean": step / 10, "reward/std": 0.5, "sequences": 16.0,
        "success/mean": step / 10, "staleness/max": 1, "staleness/mean": 0.5, "tokens_per_s": 100.0 * step,
        "ess/token": 0.9, "time/wait_s": 0.5, "time/train_s": 0.25, "time/publish_s": 0.125, "skipped": "", **metrics,
    }  # fmt: skip
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")


def talking(one: Group) -> Group:
    """Return the group with a conversation in each trajectory; the word of episode i is the i-th direction."""
    return dataclasses.replace(one, trajectories=tuple(_talking(t) for t in one.trajectories))


def _talking(t: Trajectory) -> Trajectory:
    call = {"id": "c1", "function": {"name": "move", "arguments": json.dumps({"to": WORDS[t.episode_index]})}}
    messages = [
        {"role": "user", "content": "Where is the goal?"},
        {"role": "assistant", "content": f"I go {WORDS[t.episode_index].upper()}", "tool_calls": [call]},
        {"role": "tool", "content": "moved", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Done </script> & gone"},
    ]
    return dataclasses.replace(
        t,
        conversation=encode_transcript(messages, {1: 0, 3: 1}),
        success=t.reward > 0.5,
        timing={"wall_s": 2.0},
    )


def write_ledger(folder: Path) -> None:
    """Write a ledger with two planned tasks."""
    ledger = Ledger(
        folder / "ledger.sqlite", LedgerSettings(groups_per_step=2, group_size=4, max_staleness=1)
    )
    ledger.add_tasks([Task(f"task-{i}", "gridworld") for i in range(2)])
    ledger.close()
