"""Staleness without processes: calculator_grpo in one thread; a step trains groups that are one to three versions old.

    python stale_jumps.py BASE_MODEL --objective behavior_band --learning-rate 7.5e-4 --seed 1 >> stale_jumps.jsonl

BASE_MODEL is a folder that `asyncrl sft calculator_grpo` made. Episodes are played by the rollout worker's own code
with the model itself as the engine, so nothing but the lag of the weights differs from a synchronous run. Of each step
the output has the reward, the effective sample size of its sequences, and `moved`, the mean KL divergence of a sampled
token's distribution before the optimizer step from that after it.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, DynamicCache

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.control.lr_schedule import lr_factor
from asyncrl.algo.diagnostics.ess import sequence_ess
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.objective import Objective, build_objective
from asyncrl.algo.ops import sequence_log_ratio
from asyncrl.chat.load_tokenizer import load_tokenizer
from asyncrl.chat.renderer import ChatRenderer, Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.registry import load_env
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.types import Task, Trajectory
from services.env.client import LocalEnvs

STEPS, SHOWN, WARMUP = 30, 15, 2
"""The schedule is that of the recipe's 30 steps; the first 15 are taken."""
GROUPS, SIZE, LAG = 16, 16, 2
EVERY = 8
"""One row in so many is measured before and after a step."""

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token_tis": {"name": "token_tis", "cap": 2.0},
    "icepop": {"name": "icepop", "low": 0.5, "high": 2.0},
    "sequence_tis": {"name": "sequence_tis", "cap": 2.0},
    "clip around behavior": {"name": "behavior_band", "cap": 1e9},
    "band, successes up to the cap": {"name": "behavior_band", "eps_high": 1.0},
    "behavior_band": {"name": "behavior_band"},
}
"""The correction of each."""


class ModelAsEngine:
    """Samples all turns that wait at once. Implements `Generator`."""

    def __init__(self, model: Any, version: int) -> None:
        self.model, self.version = model, version
        self.waiting: list[tuple[GenerateRequest, asyncio.Future[Generated]]] = []

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator.generate`."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        return await future

    async def serve(self, episodes: list[asyncio.Task[Any]]) -> None:
        """Answer until all episodes have ended."""
        while not all(one.done() for one in episodes):
            before = -1
            while before != len(self.waiting):
                before = len(self.waiting)
                for _ in range(3):
                    await asyncio.sleep(0)
            taken, self.waiting = self.waiting, []
            if taken:
                self._sample(taken)

    @torch.no_grad()
    def _sample(self, taken: list[tuple[GenerateRequest, asyncio.Future[Generated]]]) -> None:
        requests = [request for request, _ in taken]
        width = max(len(one.token_ids) for one in requests)
        ids = torch.zeros(len(requests), width, dtype=torch.long)
        seen = torch.zeros_like(ids)
        for row, one in enumerate(requests):
            ids[row, width - len(one.token_ids) :] = torch.from_numpy(np.array(one.token_ids, np.int64))
            seen[row, width - len(one.token_ids) :] = 1
        stops = torch.tensor(requests[0].stop_token_ids)
        place, cache, rows = (seen.cumsum(1) - 1).clamp(min=0), DynamicCache(), list(range(len(requests)))
        found: list[list[tuple[int, float]]] = [[] for _ in requests]
        ended = ["length"] * len(requests)
        while rows:
            out = self.model(
                input_ids=ids, attention_mask=seen, position_ids=place, past_key_values=cache, logits_to_keep=1
            )  # fmt: skip
            logp = log_softmax(out.logits[:, -1].float(), -1)
            token = torch.multinomial(logp.exp(), 1)
            stopped = torch.isin(token, stops).flatten().tolist()
            values = zip(
                rows, token.flatten().tolist(), logp.gather(1, token).flatten().tolist(), strict=True
            )
            for row, one, value in values:
                found[row].append((one, value))
            keep = [
                i
                for i, row in enumerate(rows)
                if not stopped[i] and len(found[row]) < requests[row].max_tokens
            ]
            for i, row in enumerate(rows):
                ended[row] = "stop" if stopped[i] else ended[row]
            kept = torch.tensor(keep, dtype=torch.long)
            cache.batch_select_indices(kept)
            rows, ids, place = [rows[i] for i in keep], token[kept], place[kept][:, -1:] + 1
            seen = torch.cat([seen[kept], torch.ones(len(keep), 1, dtype=torch.long)], 1)
        for (_, future), pairs, reason in zip(taken, found, ended, strict=True):
            tokens, values_ = zip(*pairs, strict=True)
            versions = np.full(len(pairs), self.version, np.int32)
            future.set_result(
                Generated(np.array(tokens, np.int32), np.array(values_, np.float32), versions, reason)
            )


class Player:
    """Plays groups of episodes with a model."""

    def __init__(self, base: str, seed: int) -> None:
        self.renderer = ChatRenderer(load_tokenizer(base))
        self.env = load_env("calculator")
        self.tasks = self.env.tasks("train", "calculator")
        for _ in range(1000 * seed):
            next(self.tasks)
        self.settings = EpisodeSettings(limits=Limits(0, 40, 256))

    def play(self, model: Any, version: int, tasks: list[Task], size: int) -> list[list[Trajectory]]:
        """Return the episodes of each task, `size` of each."""

        async def run() -> list[Trajectory]:
            engine, envs = ModelAsEngine(model, version), LocalEnvs()
            player = ChatPlayer(engine, envs, self.renderer, parse_hermes, self.settings)
            asked = [
                EpisodeRequest(task=task, index=i, id=f"{task.id}-{i}") for task in tasks for i in range(size)
            ]
            episodes = [asyncio.ensure_future(player.play(one)) for one in asked]
            await engine.serve(episodes)
            await envs.close()
            return [one.result()[0] for one in episodes]

        played = asyncio.run(run())
        return [played[i : i + size] for i in range(0, len(played), size)]

    def groups(self, model: Any, version: int, number: int) -> tuple[list[list[Trajectory]], list[float]]:
        """Return groups with a signal, and the rewards of all episodes that were played for them."""
        found: list[list[Trajectory]] = []
        rewards: list[float] = []
        for _ in range(4):
            played = self.play(model, version, [next(self.tasks) for _ in range(GROUPS)], SIZE)
            rewards += [one.reward for group in played for one in group]
            found += [group for group in played if len({one.reward for one in group}) > 1]
            if len(found) >= number:
                break
        return found[:number], rewards

    def heldout(self, model: Any) -> float:
        """Return the success on 200 held-out tasks."""
        tasks = self.env.tasks("heldout", "calculator")
        played = self.play(model, 0, [next(tasks) for _ in range(200)], 1)
        return float(np.mean([group[0].reward for group in played]))


def padded(groups: list[list[Trajectory]]) -> dict[str, Tensor]:
    """Return the trajectories as tensors of one width, and their GRPO advantages [B,1]."""
    rows = [one for group in groups for one in group]
    width = max(len(one.token_ids) for one in rows)

    def fill(name: str) -> Tensor:
        values = np.zeros((len(rows), width), np.float32)
        for row, one in enumerate(rows):
            values[row, : len(one.token_ids)] = getattr(one, name) if name else 1
        return torch.from_numpy(values)

    rewards = torch.tensor([one.reward for one in rows])
    places = torch.arange(len(groups)).repeat_interleave(SIZE)
    advantages = grpo_scores(rewards, places)
    return {
        "ids": fill("token_ids").long(),
        "seen": fill("").long(),
        "mask": fill("loss_mask")[:, 1:],
        "behavior": fill("behavior_logprobs")[:, 1:],
        "advantages": advantages.view(-1, 1),
    }


def log_probabilities(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return those of the tokens [B,T-1] and of the whole vocabulary [B,T-1,V]."""
    logits = model(input_ids=batch["ids"], attention_mask=batch["seen"]).logits[:, :-1].float()
    full = log_softmax(logits, -1)
    return full.gather(2, batch["ids"][:, 1:, None]).squeeze(2), full


def step(model: Any, optimizer: Any, batch: dict[str, Tensor], objective: Objective) -> dict[str, float]:
    """Take one optimizer step, as the trainer does with one minibatch; return what it did to the policy."""
    measured = {name: value[::EVERY] for name, value in batch.items()}
    with torch.no_grad():
        _, before = log_probabilities(model, measured)
    optimizer.zero_grad()
    log_ratios = []
    for rows in batch["seen"].sum(1).argsort().chunk(4):
        part = {name: value[rows] for name, value in batch.items()}
        logp, _ = log_probabilities(model, part)
        inputs = LossInputs(
            logp=logp,
            proximal_logp=logp.detach(),
            behavior_logp=part["behavior"],
            advantages=part["advantages"].expand_as(logp),
            mask=part["mask"].bool(),
        )
        weight, _ = objective.correction_weight(inputs)
        token = -part["advantages"] * weight * logp * part["mask"]
        (token.sum(1) / part["mask"].sum(1)).sum().div(len(batch["ids"])).backward()
        log_ratios.append(sequence_log_ratio(inputs.mismatch_log_ratio, inputs.mask))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        _, after = log_probabilities(model, measured)
    moved = (before.exp() * (before - after)).sum(2) * measured["mask"]
    _, _, ess = sequence_ess(torch.cat(log_ratios))
    return {
        "ess": float(ess),
        "moved": float(moved.sum() / measured["mask"].sum()),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("base")
    asked.add_argument("--objective", choices=OBJECTIVES, default="token_tis")
    asked.add_argument("--learning-rate", type=float, default=5e-4)
    asked.add_argument("--lag", type=int, default=LAG, help="versions, give or take one; 0 is synchronous")
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    drawn = random.Random(given.seed)
    objective = build_objective({"corrections": [OBJECTIVES[given.objective]]})
    player = Player(given.base, given.seed)
    model = AutoModelForCausalLM.from_pretrained(given.base, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.999), weight_decay=0.0)
    versions = [copy.deepcopy(model)]
    steps = []
    for now in range(SHOWN):
        near = min(now, given.lag)
        lags = [drawn.randint(max(0, near - 1), min(now, near + 1)) if given.lag else 0 for _ in range(2)]
        played = [player.groups(versions[-1 - lag], now - lag, GROUPS // 2) for lag in lags]
        batch = padded([group for groups, _ in played for group in groups])
        for group in optimizer.param_groups:
            group["lr"] = given.learning_rate * lr_factor("linear", now, STEPS, WARMUP)
        done = step(model, optimizer, batch, objective)
        rewards = [one for _, some in played for one in some]
        steps.append({"reward": float(np.mean(rewards))} | done)
        versions.append(copy.deepcopy(model))
    key = {name: getattr(given, name) for name in ("objective", "learning_rate", "lag", "seed")}
    print(json.dumps(key | {"held_out": player.heldout(model), "steps": steps}))


if __name__ == "__main__":
    main()
