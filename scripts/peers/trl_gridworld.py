"""TRL's GRPOTrainer on gridworld, on a GPU if there is one: the peer of `scripts/bench/bench_trl.py`, which starts it.

Runs in a virtual environment of its own:

    python -m venv PEER && PEER/bin/pip install trl==1.16.0 torch transformers
    PEER/bin/pip install --no-deps -e .        # this project's environment and chat rendering, nothing else of it

The rollout function plays all episodes of a batch in step: one batched `generate` of transformers for the turn of every
unfinished episode, then all their tools at once. Takes one argument, a JSON object: {"model", "seed", "tasks",
"group_size", "learning_rate", "max_steps", "threshold", "max_tokens_per_turn", "latency": null or {"median_s",
"sigma", "seed"}}. Prints as its last line {"steps": [[seconds since the start of training, mean reward]]}.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.env.protocol import Action
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


class Episode:
    """One episode: its tokens, which of them were sampled, and the environment."""

    def __init__(self, seed: int, renderer: ChatRenderer) -> None:
        self.env = Gridworld(Task(f"train-{seed}", "gridworld", seed))
        self.prompt = renderer.opening(self.env.reset(), []).tolist()
        self.completion: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.reward, self.done = 0.0, False

    def act(self, ids: list[int], logprobs: list[float], renderer: ChatRenderer) -> None:
        self.completion += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs
        text = renderer.tokenizer.decode([i for i in ids if i not in renderer.stop_token_ids])
        step = self.env.step(Action(text))
        self.reward += step.reward
        self.done = step.done
        if not step.done:
            seen = renderer.observation(step.messages, []).tolist()
            self.completion += seen
            self.mask += [0] * len(seen)
            self.logprobs += [0.0] * len(seen)


class Player:
    """TRL's rollout function."""

    def __init__(self, job: dict[str, Any], renderer: ChatRenderer) -> None:
        self.job, self.renderer = job, renderer
        latency = job["latency"]
        self.draws = random.Random(latency["seed"]) if latency else None

    @torch.no_grad()
    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        size = self.job["group_size"]
        repeats = 1 if len(prompts) == self.job["tasks"] * size else size
        episodes = [Episode(int(p), self.renderer) for p in prompts for _ in range(repeats)]
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        while playing := [e for e in episodes if not e.done]:
            self._turn(model, playing)
            self._wait(len(playing))
        model.train()
        return {
            "prompt_ids": [e.prompt for e in episodes],
            "completion_ids": [e.completion for e in episodes],
            "logprobs": [e.logprobs for e in episodes],
            "env_mask": [e.mask for e in episodes],
            "reward": [e.reward for e in episodes],
        }

    def _turn(self, model: Any, playing: list[Episode]) -> None:
        """Sample one turn of every episode in one batch, padded on the left."""
        contexts = [e.prompt + e.completion for e in playing]
        width = max(map(len, contexts))
        ids = torch.tensor([[0] * (width - len(c)) + c for c in contexts], device=model.device)
        attention = torch.tensor(
            [[0] * (width - len(c)) + [1] * len(c) for c in contexts], device=model.device
        )
        stop = self.renderer.stop_token_ids[0]
        found = model.generate(
            input_ids=ids,
            attention_mask=attention,
            max_new_tokens=self.job["max_tokens_per_turn"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=stop,
            pad_token_id=stop,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logp = torch.stack(found.logits, 1).log_softmax(-1)
        new = found.sequences[:, width:]
        chosen = logp.gather(-1, new.unsqueeze(-1)).squeeze(-1)
        for episode, row, values in zip(playing, new.tolist(), chosen.tolist(), strict=True):
            end = row.index(stop) + 1 if stop in row else len(row)
            episode.act(row[:end], values[:end], self.renderer)

    def _wait(self, count: int) -> None:
        """Wait for the tools of one turn, all at once: the slowest decides."""
        latency = self.job["latency"]
        if self.draws is not None:
            mean = math.log(latency["median_s"])
            time.sleep(max(self.draws.lognormvariate(mean, latency["sigma"]) for _ in range(count)))


class Clock(TrainerCallback):
    """Notes when each step ended and its mean reward; ends the training at the threshold."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self.steps, self.start = threshold, [], 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.start = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if logs and "reward" in logs:
            self.steps.append([time.perf_counter() - self.start, float(logs["reward"])])
            print(f"trl: step {len(self.steps)} {self.steps[-1]}", file=sys.stderr, flush=True)
            control.should_training_stop = self.steps[-1][1] >= self.threshold


def main() -> None:
    job = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    renderer = ChatRenderer(tokenizer)
    count = job["tasks"] * job["max_steps"]
    data = Dataset.from_dict({"prompt": [str(2 * (job["seed"] * 100_000 + i)) for i in range(count)]})
    config = GRPOConfig(
        output_dir=f"{tempfile.gettempdir()}/trl-gridworld",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        seed=job["seed"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        per_device_train_batch_size=job["tasks"] * job["group_size"],
        num_generations=job["group_size"],
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        gradient_checkpointing=False,
        max_completion_length=256,
        max_steps=job["max_steps"],
        beta=0.0,
        temperature=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    clock = Clock(job["threshold"])
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        reward_funcs=[lambda reward, **rest: reward],
        rollout_func=Player(job, renderer),
        callbacks=[clock],
    )
    trainer.train()
    print(json.dumps({"steps": clock.steps, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
