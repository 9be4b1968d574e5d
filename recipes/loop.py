"""GRPO on one page: synchronous, one process beside the engine, no buffer, no services.

    python recipes/loop.py [--steps 8] [--env gridworld]

It is what `asyncrl train` does when nothing overlaps: sample groups, subtract the group's mean reward, take one
gradient step, load the new weights into the engine. Read this first.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.generation import GenerateRequest
from asyncrl.launch.models.base_model import cached_base_model
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.models.loading import load_policy
from asyncrl.weights.files import write_weights

NUM_TASKS = 16  # P: groups per step
GROUP_SIZE = 16  # G: episodes per group
MAX_TURN_TOKENS = 8
CLIP = 0.2
LEARNING_RATE = 6e-4


async def play(engine, envs, renderer, task, name):
    """One episode: returns token ids [L], mask [L], behavior log-probabilities [L] and the reward."""
    session = await envs.open(task, {})
    ids = [renderer.opening(session.messages, session.tools)]
    mask, logps, reward = [np.zeros(len(ids[0]), bool)], [np.zeros(len(ids[0]), np.float32)], 0.0
    for turn in range(session.max_turns):
        context = np.concatenate(ids)
        request = GenerateRequest(
            f"{name}-{turn}", context, MAX_TURN_TOKENS, stop_token_ids=renderer.stop_token_ids
        )
        sampled = await engine.generate(request)
        ids.append(sampled.token_ids)
        mask.append(np.ones(len(sampled.token_ids), bool))
        logps.append(sampled.logprobs)
        if sampled.finish_reason == "length":
            break
        step = await session.step(turn, parse_hermes(renderer.text(sampled.token_ids)), 30.0)
        reward += step.reward
        if step.done:
            break
        observation = renderer.observation(step.messages, session.tools)
        ids.append(observation)
        mask.append(np.zeros(len(observation), bool))
        logps.append(np.zeros(len(observation), np.float32))
    await session.close()
    return np.concatenate(ids), np.concatenate(mask), np.concatenate(logps), reward


def pad(rows, dtype):
    """Stack arrays of different lengths, zeros at the right. [B,T]."""
    out = np.zeros((len(rows), max(map(len, rows))), dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def train_step(policy, optimizer, episodes):
    """One PPO-clip step on group-normalised rewards, averaged over all sampled tokens."""
    rewards_PG = torch.tensor([e[3] for e in episodes]).view(NUM_TASKS, GROUP_SIZE)
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    advantages_B = (centred_PG / (rewards_PG.std(1, keepdim=True) + 1e-6)).flatten()
    num_tokens = sum(int(e[1].sum()) for e in episodes)
    optimizer.zero_grad()
    order = sorted(range(len(episodes)), key=lambda i: len(episodes[i][0]))
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        token_ids = pad([episodes[i][0] for i in rows], np.int64)
        mask = pad([episodes[i][1] for i in rows], bool)
        behavior_logp = pad([episodes[i][2] for i in rows], np.float32)
        logp = policy(token_ids, mask, 1.0)["logp"]
        ratio = torch.exp(logp - behavior_logp)
        advantage = advantages_B[rows, None]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP))
        (loss[mask].sum() / num_tokens).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return float(rewards_PG.mean())


async def run(args, model, engine, weights_dir):
    envs, renderer = LocalEnvs(), load_renderer(model)
    policy = load_policy(model, "float32")
    optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    tasks = load_env(args.env).tasks("train", args.env)
    for step in range(args.steps):
        start = time.monotonic()
        chosen = list(itertools.islice(tasks, NUM_TASKS))
        runs = [
            play(engine, envs, renderer, task, f"{step}-{p}-{g}")
            for p, task in enumerate(chosen)
            for g in range(GROUP_SIZE)
        ]
        episodes = await asyncio.gather(*runs)
        rollout_s = time.monotonic() - start
        reward = train_step(policy, optimizer, episodes)
        file = write_weights(weights_dir, step + 1, policy.model.named_parameters())
        await engine.request("weights/prepare", file.to_json())
        await engine.request("weights/commit", file.to_json())
        total_s = time.monotonic() - start
        print(
            f"step {step + 1}  reward {reward:.3f}  rollout {rollout_s:.1f} s  train {total_s - rollout_s:.1f} s"
        )
    await engine.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--env", default="gridworld")
    args = parser.parse_args()
    config = load_config(f"recipes/{args.env}_grpo")
    model = str(cached_base_model(config))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        (Path(folder) / "config.json").write_text(config.model_dump_json())
        process_group = ProcessGroup(Path(folder))
        try:
            weights = Path(folder) / "weights"
            argv = ["--folder", folder, "--model", model, "--weights-dir", str(weights)]
            child = process_group.start("engine", ["serve", "engine", *argv])
            url = process_group.wait_ready(child, config.run.start_timeout_s)
            engine = EngineClient(url, process_group.credentials.bearer("engine"))
            asyncio.run(run(args, model, engine, weights))
        finally:
            process_group.stop()


if __name__ == "__main__":
    main()
