"""TRL's GRPO step on given rollouts, on the CPU: a peer of `scripts/bench/bench_train.py`, which starts it.

Runs in a virtual environment of its own, with `pip install trl==1.16.0 torch transformers`. Takes one argument, the
path of a JSON object: {"model", "rows": [{"group", "prompt", "completion", "reward"}], "group_size",
"micro_batch_rows"}. For each line on its standard input it takes one optimizer step on all rows and prints
{"seconds"}: forward, backward and optimizer, without generation and without the scoring of the rollouts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MAX_STEPS = 1000
torch.set_num_threads(1)


class Given:
    """TRL's rollout function: gives the rollouts of the job when told to go on."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.by_group: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            self.by_group.setdefault(row["group"], []).append(row)

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        if not sys.stdin.readline():
            sys.exit(0)
        used: dict[int, int] = {}
        rows = []
        for prompt in map(int, prompts):
            number = used[prompt] = used.get(prompt, -1) + 1
            rows.append(self.by_group[prompt][number])
        return {
            "prompt_ids": [row["prompt"] for row in rows],
            "completion_ids": [row["completion"] for row in rows],
            "logprobs": [[0.0] * len(row["completion"]) for row in rows],
            "reward": [row["reward"] for row in rows],
        }


class TimedTrainer(GRPOTrainer):
    """Knows how long the inputs of a step took."""

    inputs_s = 0.0

    def _prepare_inputs(self, inputs: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._prepare_inputs(inputs)
        finally:
            self.inputs_s += time.perf_counter() - start


class Clock(TrainerCallback):
    """Prints the seconds of each step."""

    trainer: TimedTrainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.start, self.trainer.inputs_s = time.perf_counter(), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        seconds = time.perf_counter() - self.start - self.trainer.inputs_s
        print(json.dumps({"seconds": seconds}), flush=True)


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    groups = len(job["rows"]) // job["group_size"]
    config = GRPOConfig(
        output_dir=f"{tempfile.gettempdir()}/trl-train-step",
        use_cpu=True,
        bf16=False,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        per_device_train_batch_size=job["micro_batch_rows"],
        gradient_accumulation_steps=len(job["rows"]) // job["micro_batch_rows"],
        num_generations=job["group_size"],
        gradient_checkpointing=False,
        max_completion_length=max(len(row["completion"]) for row in job["rows"]),
        max_steps=MAX_STEPS,
        beta=0.0,
        temperature=1.0,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    clock = Clock()
    clock.trainer = TimedTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [str(i % groups) for i in range(groups * MAX_STEPS)]}),
        processing_class=tokenizer,
        reward_funcs=[lambda reward, **rest: reward],
        rollout_func=Given(job["rows"]),
        callbacks=[clock],
    )
    clock.trainer.train()


if __name__ == "__main__":
    main()
