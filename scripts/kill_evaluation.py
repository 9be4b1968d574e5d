"""Kill the processes of a long evaluation again and again, and check that no sample is lost or played twice.

    python scripts/kill_evaluation.py --samples 10000 --kills 12 --seed 0 [--json OUT]

A tiny model of random weights plays gridworld on the CPU by `asyncrl eval --suite`. At random moments one of its
processes gets SIGKILL: the command itself, which is then given again, the engine, its vLLM server, the rollout worker
or the environment service. Each kind is killed before any is killed again. Then:

    every sample of the suite is in `samples.jsonl`, once, and what a killed command had written stands there unchanged
    no sample counts as failed
    `results.json` says that the evaluation is complete, over all tasks

Exit code 0 when all of it holds.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from asyncrl.extensions.benchmarks.samples import FILE

SAMPLES_A_TASK = 4
CONTEXT = 256
KINDS = {"launcher": "", "engine": "serve engine", "vllm": "", "rollout": "serve rollout", "env": "serve env"}
"""What is killed, by a part of its command; the launcher is the command itself, vLLM the engine's child."""
LIFE_S = 1800.0
"""The most that one life of the command may take."""
POLL_S = 0.05


def make_inputs(folder: Path, samples: int) -> None:
    """Write a model and a suite of that many samples into a folder."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer(["user goal north south east west assistant"] * 20, 400, CONTEXT)
    save(folder / "model", build_model(400, 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0), tokenizer)
    (folder / "long.toml").write_text(
        f"version = 1\nsamples = {SAMPLES_A_TASK}\nmax_tokens_per_turn = 4\nmax_model_len = {CONTEXT}\n"
        f'[parts.walk]\nenv = "gridworld"\ntasks = {samples // SAMPLES_A_TASK}\nconfig = {{ max_turns = 2 }}\n'
    )


class Evaluation:
    """The command, given again after it was killed."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.folder = folder
        self.samples = folder / "out" / FILE
        self.command = [
            sys.executable,
            "-m",
            "asyncrl",
            "eval",
            "model",
            "--suite",
            "long.toml",
            "--out",
            "out",
        ]
        self.command += settings
        self.lives = 0
        self.kept = b""
        """What the last killed command had written."""

    def start(self) -> None:
        self.lives += 1
        self.started = time.monotonic()
        with open(self.folder / f"life-{self.lives}.log", "w") as log:
            self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=log, stderr=log)

    def written(self) -> int:
        return self.samples.read_bytes().count(b"\n") if self.samples.exists() else 0

    def wait_for(self, count: int) -> bool:
        """Wait for that many samples; False when the command has ended before."""
        while self.written() < count:
            if self.process.poll() is not None:
                return False
            if time.monotonic() - self.started > LIFE_S:
                raise SystemExit(f"the command took longer than {LIFE_S:g} s: see {self.folder}")
            time.sleep(POLL_S)
        return True

    def kill(self, kind: str) -> None:
        """Kill a process of the evaluation; after the command itself, wait until its processes have ended."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        if kind == "launcher":
            self.process.kill()
            self.process.wait()
            psutil.wait_procs(family, timeout=120)
            if left := [one.pid for one in family if one.is_running()]:
                raise SystemExit(f"processes {left} outlived the command for two minutes")
            written = self.samples.read_bytes()
            self.kept = written[: written.rfind(b"\n") + 1]
            self.start()
            return
        victim = self._find(family, "serve engine" if kind == "vllm" else KINDS[kind])
        if kind == "vllm":
            victim = next(iter(victim.children()), victim)
        victim.kill()

    def _find(self, family: list[psutil.Process], part: str) -> psutil.Process:
        """Return the process with this command, waiting for one that is being started again."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            for one in family:
                try:
                    if part in " ".join(one.cmdline()):
                        return one
                except psutil.NoSuchProcess:
                    continue
            time.sleep(POLL_S)
            family = psutil.Process(self.process.pid).children(recursive=True)
        raise SystemExit(f"no process {part!r} within a minute: see {self.folder}")


def disturb(evaluation: Evaluation, samples: int, kills: int, rng: random.Random) -> collections.Counter[str]:
    """Play all samples, with kills between them; return the kills by kind."""
    kinds = [kind for _ in range(kills) for kind in rng.sample(sorted(KINDS), len(KINDS))][:kills]
    moments = sorted(rng.sample(range(1, samples), kills))
    killed: collections.Counter[str] = collections.Counter()
    evaluation.start()
    for kind, moment in zip(kinds, moments, strict=True):
        if not evaluation.wait_for(moment):
            break
        evaluation.kill(kind)
        killed[kind] += 1
        print(f"{evaluation.written()} samples: killed {kind}", file=sys.stderr, flush=True)
    evaluation.wait_for(samples)
    if evaluation.process.wait(LIFE_S) != 0:
        raise SystemExit(f"the command failed: see {evaluation.folder}/life-{evaluation.lives}.log")
    return killed


def check(evaluation: Evaluation, samples: int) -> dict[str, Any]:
    """Return what must hold, each with whether it does."""
    written = evaluation.samples.read_bytes()
    rows = [json.loads(line) for line in written.splitlines()]
    result = json.loads((evaluation.folder / "out" / "results.json").read_text())
    return {
        "every sample is there": len({row["id"] for row in rows}) == samples,
        "none is there twice": len(rows) == len({row["id"] for row in rows}),
        "what was written stands": written.startswith(evaluation.kept),
        "none counts as failed": not any(row["failure"] for row in rows),
        "results.json is complete": result["complete"] and result["tasks"] * SAMPLES_A_TASK == samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000, help="of the suite (10000)")
    parser.add_argument("--kills", type=int, default=12, help="(12)")
    parser.add_argument("--seed", type=int, default=0, help="of kinds and moments (0)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("settings", nargs="*", help="settings of the evaluation as key=value")
    args = parser.parse_args()
    samples = args.samples // SAMPLES_A_TASK * SAMPLES_A_TASK
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-kill-evaluation-"))
    make_inputs(folder, samples)
    evaluation = Evaluation(folder, args.settings)
    start = time.monotonic()
    killed = disturb(evaluation, samples, args.kills, random.Random(args.seed))
    held = check(evaluation, samples)
    restarts = sum(len(path.read_bytes().splitlines()) for path in folder.glob("out/work/*/restarts.jsonl"))
    found = {
        "samples": samples, "seconds": round(time.monotonic() - start, 1), "kills": dict(killed),
        "lives of the command": evaluation.lives, "restarts by the command": restarts, "held": held,
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    if not all(held.values()):
        print(f"see {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
