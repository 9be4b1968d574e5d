"""Trained tokens a second beside a padded loop and TRL's GRPO step, and the memory of log-probabilities.

    python scripts/bench/bench_train.py --peer PEER/bin/python [--repeats 5] [--json OUT]

One optimizer step of GRPO on 4 groups of 8 rows: the rows of a group share a prompt of 128 tokens, completions are
log-normal (median 96 tokens, sigma 1, at most 1,024). The model is a random Qwen3 of 7.6 M parameters with a vocabulary
of 16,384. The three take turns, on one thread each:

- asyncrl: `train_step` with the preset grpo, advantages and checks included;
- padded loop: transformers and DeepSpeed as one would write it down, 8 rows a micro-batch in the order they come,
  padded to the longest of them, logits of all tokens;
- TRL: GRPOTrainer in a process of its own (`scripts/peers/trl_train_step.py`), 8 rows a micro-batch, without what it
  spends on generating and scoring.

A micro-batch of ours holds at most the padded tokens that 8 of the longest row take. Tokens are the completions'.

`logp_memory_ratio` is the peak memory of log-probabilities with their gradient at a vocabulary of 151,936, 4,096
tokens, full logits over ours, counted on fake tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed
import numpy as np
import torch
from bench_async import say, spread
from report import write_report
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoModelForCausalLM, Qwen3Config

from asyncrl.algo.objective import build_objective
from asyncrl.config import TrainConfig
from asyncrl.train.engine.deepspeed_engine import TrainEngine, deepspeed_config, init_distributed
from asyncrl.train.engine.optimizers import make_optimizer
from asyncrl.train.models.loading import load_policy
from asyncrl.train.models.tiny_model import build_tokenizer
from asyncrl.train.models.token_scores import Head, score_tokens
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step import train_step
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import NOT_SAMPLED, Group, Status, Task, Trajectory, Turn

GROUPS, SIZE, PROMPT, MEDIAN, SIGMA, LONGEST, VOCABULARY = 4, 8, 128, 96, 1.0, 1024, 16384
MICRO_BATCH_ROWS = 8
LEARNING_RATE = 1e-6
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
LOGP_VOCABULARY, LOGP_TOKENS, LOGP_HIDDEN = 151_936, 4096, 64


def save_model(folder: str) -> None:
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    build_tokenizer(["one two three"] * 20, 400, 2048).save_pretrained(folder)


def make_rows(seed: int) -> list[dict[str, Any]]:
    """Return rows in the order of their groups."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(np.log(MEDIAN), SIGMA, GROUPS * SIZE)).clip(4, LONGEST).astype(int)
    prompts = rng.integers(5, VOCABULARY, (GROUPS, PROMPT))
    return [
        {
            "group": row // SIZE,
            "prompt": prompts[row // SIZE].tolist(),
            "completion": rng.integers(5, VOCABULARY, length).tolist(),
            "reward": float(rng.integers(0, 2)),
        }
        for row, length in enumerate(lengths)
    ]


def to_groups(rows: list[dict[str, Any]]) -> list[Group]:
    found: dict[int, list[Trajectory]] = {}
    for row in rows:
        members = found.setdefault(row["group"], [])
        mask = np.r_[np.zeros(PROMPT, bool), np.ones(len(row["completion"]), bool)]
        members.append(
            Trajectory(
                task_id=f"t{row['group']}",
                episode_index=len(members),
                token_ids=np.array(row["prompt"] + row["completion"], np.int32),
                loss_mask=mask,
                behavior_logprobs=np.where(mask, -np.log(VOCABULARY), 0.0).astype(np.float32),
                versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
                turns=(Turn(PROMPT, len(mask), row["reward"], "s", matches=None),),
                reward=row["reward"],
                components={},
                info={},
                status=Status.FINISHED,
                failure=None,
            )
        )
    return [
        Group(f"g{number}", Task(f"t{number}", "bench"), 0, tuple(members), "w")
        for number, members in found.items()
    ]


def make_ours(model: str) -> Callable[[list[dict[str, Any]]], None]:
    engine = TrainEngine(load_policy(model, "float32"), TrainConfig(learning_rate=LEARNING_RATE), "float32")
    objective = build_objective({"preset": "grpo"})

    def step(rows: list[dict[str, Any]]) -> None:
        budget = MICRO_BATCH_ROWS * max(PROMPT + len(row["completion"]) for row in rows)
        settings = StepSettings(1.0, budget, 1, horizon=float(LONGEST))
        batch = build_step_batch(to_groups(rows), 0, 0)
        report = train_step(engine, objective, AuxiliaryModels(objective), batch, settings, LEARNING_RATE)
        assert report.num_tokens == sum(len(row["completion"]) for row in rows)

    return step


def make_padded_loop(model: str) -> Callable[[list[dict[str, Any]]], None]:
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    train = TrainConfig(learning_rate=LEARNING_RATE)
    settings = deepspeed_config(train, "float32", sum(p.numel() for p in policy.parameters()))
    optimizer = make_optimizer(train, policy.named_parameters())
    engine, *_ = deepspeed.initialize(
        model=policy, model_parameters=policy.parameters(), optimizer=optimizer, config=settings
    )

    def step(rows: list[dict[str, Any]]) -> None:
        rewards = torch.tensor([row["reward"] for row in rows]).view(GROUPS, SIZE)
        advantages = (
            (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
        ).flatten()
        total = sum(len(row["completion"]) for row in rows)
        for start in range(0, len(rows), MICRO_BATCH_ROWS):
            chosen = rows[start : start + MICRO_BATCH_ROWS]
            ids = [torch.tensor(row["prompt"] + row["completion"]) for row in chosen]
            lengths = torch.tensor([len(row) for row in ids])
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            positions = torch.arange(padded.shape[1])
            logits = engine(
                input_ids=padded, attention_mask=(positions < lengths[:, None]).long(), use_cache=False
            ).logits
            logp = logits[:, :-1].log_softmax(-1).gather(-1, padded[:, 1:, None]).squeeze(-1)
            sampled = (positions[1:] >= PROMPT) & (positions[1:] < lengths[:, None])
            ratio = (logp - logp.detach()).exp()
            given = advantages[start : start + MICRO_BATCH_ROWS, None]
            surrogate = torch.minimum(ratio * given, ratio.clamp(0.8, 1.2) * given)
            engine.set_gradient_accumulation_boundary(start + MICRO_BATCH_ROWS >= len(rows))
            engine.backward(-(surrogate * sampled).sum() / total)
        engine.step()

    return step


class Trl:
    """TRL in a process of its own, which takes a step when told to. The rows are given once."""

    def __init__(self, peer: str, job: dict[str, Any], folder: Path) -> None:
        path = folder / "job.json"
        path.write_text(json.dumps(job))
        script = str(Path(__file__).parents[1] / "peers" / "trl_train_step.py")
        # Without what tells a process that it is a rank: TRL would wrap its model for several.
        env = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
        self.process = subprocess.Popen(
            [*shlex.split(peer), script, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip

    def step_s(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{"seconds"'):
                return float(json.loads(line)["seconds"])
        raise SystemExit(f"--peer: TRL ended with {self.process.wait()}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def full_logits(labels: Tensor, head: Any, states: Tensor) -> Tensor:
    """Return log-probabilities [N] as one writes them down."""
    return torch.log_softmax(head(states).float(), dim=-1).gather(-1, labels[:, None]).squeeze(-1)


def in_chunks(labels: Tensor, head: Any, states: Tensor) -> Tensor:
    return head(states, partial(score_tokens, labels, LOGP_VOCABULARY, 1.0, (), None))["logp"]


def logp_peak_bytes(logp: Callable[[Tensor, Any, Tensor], Tensor]) -> int:
    """Return the peak memory of log-probabilities and their gradient, states and projection included."""
    with FakeTensorMode():
        head = torch.nn.Linear(LOGP_HIDDEN, LOGP_VOCABULARY, bias=False)
        head.forward = Head(head, None)  # type: ignore[method-assign, assignment]
        states = torch.empty(LOGP_TOKENS, LOGP_HIDDEN, requires_grad=True)
        labels = torch.zeros(LOGP_TOKENS, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(head, states, labels)
        with tracker:
            logp(labels, head, states).sum().backward()
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="Python of the environment that has TRL; without it TRL is left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    init_distributed()
    peaks = {"full": logp_peak_bytes(full_logits), "chunked": logp_peak_bytes(in_chunks)}
    rows = make_rows(0)
    tokens = sum(len(row["completion"]) for row in rows)
    times: dict[str, list[float]] = {"asyncrl": [], "padded_loop": [], "trl": []}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        model = f"{folder}/model"
        save_model(model)
        job = {"model": model, "rows": rows, "group_size": SIZE, "micro_batch_rows": MICRO_BATCH_ROWS}
        trl = Trl(args.peer, job, Path(folder)) if args.peer else None
        ours, padded_loop = make_ours(model), make_padded_loop(model)
        try:
            for repeat in range(args.repeats + 1):
                found = {
                    "asyncrl": seconds(lambda: ours(rows)),
                    "padded_loop": seconds(lambda: padded_loop(rows)),
                }
                if trl is not None:
                    found["trl"] = trl.step_s()
                say(f"repeat {repeat}{' (warm-up)' if not repeat else ''}: {found}")
                for name, value in found.items() if repeat else ():
                    times[name].append(value)
        finally:
            if trl is not None:
                trl.close()
    result: dict[str, Any] = {
        "cores": os.cpu_count(), "rows": len(rows), "sampled_tokens": tokens,
        "tokens_s": {name: spread([tokens / s for s in found]) for name, found in times.items() if found},
        "over_padded_loop": over(times, "padded_loop"),
        "over_trl": over(times, "trl") if times["trl"] else None,
        "logp_memory_ratio": peaks["full"] / peaks["chunked"],
        "logp_peak_bytes": peaks,
    }  # fmt: skip
    write_report(result, args.json)


def over(times: dict[str, list[float]], peer: str) -> dict[str, float]:
    """How often as many tokens a second as `peer`, repeat by repeat."""
    return spread([theirs / ours for ours, theirs in zip(times["asyncrl"], times[peer], strict=True)])


if __name__ == "__main__":
    main()
