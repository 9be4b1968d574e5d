"""`asyncrl sft`: make a tiny base model and train it on scripted episodes.

The result is a Hugging Face folder. Most episodes are random, so the base model can act and is far from good:
reinforcement learning has something left to learn.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.config import Config, TrainConfig
from asyncrl.config_sections import SftConfig
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.env.registry import load_env
from asyncrl.extensions.settings import composed_section
from asyncrl.extensions.supervised.demonstrations import Demonstration, Encoded, demonstrations, encode
from asyncrl.extensions.vision.rows import VisionRows
from asyncrl.extensions.vision.tiny_model import VISION_TOKENS, build_vision_model, processor_of
from asyncrl.images import has_images
from asyncrl.process_hooks import set_threads
from asyncrl.progress import Progress, progress
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.policy import PolicyModel, run_rows
from asyncrl.train.models.prefix_tree import enable_prefix_trees
from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
from asyncrl.types import IMAGES

CORPUS_EPISODES = 1000
VOCAB_SIZE = 512


def train_base_model(config: Config, folder: str | Path, seed: int = 0) -> Path:
    """Train the base model of a recipe into `folder`, which appears whole or not at all.

    Deterministic by `seed`. Takes one to three minutes on two cores.
    """
    folder = Path(folder)
    sft = config.sft
    set_threads(config.run.threads)
    torch.manual_seed(seed)
    env_class = load_env(config.env.name)
    played = demonstrations(
        env_class,
        config.env.name,
        config.env.config,
        sft.episodes,
        sft.oracle_fraction,
        seed,
        sft.concurrency,
    )
    episodes = []
    with progress("sft: playing scripted episodes", sft.episodes, "episodes") as advance:
        for episode in played:
            episodes.append(episode)
            advance(1)
    length = config.engine.max_model_len
    renderer = make_renderer(episodes, length)
    tokenizer: Any = renderer.tokenizer
    shape = sft.hidden_size, sft.num_layers, sft.num_heads, length
    if renderer.image_processor is None:
        model: Any = build_model(len(tokenizer), *shape, tokenizer.eos_token_id, seed)
    else:
        model = build_vision_model(tokenizer, *shape, seed)
    data = [encode(renderer, demo) for demo in episodes]
    longest = max(len(demo.ids) for demo in data)
    _say(
        f"sft: {len(data)} episodes, longest {longest} tokens, {sum(p.numel() for p in model.parameters())} parameters"
    )
    enable_prefix_trees(model)
    processor = None if renderer.image_processor is None else processor_of(tokenizer)
    rows = run_rows if processor is None else VisionRows(processor)
    _fit(PolicyModel(model, rows), data, config, seed)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    save(partial, model, tokenizer)
    if processor is not None:
        processor.save(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return folder


def make_renderer(episodes: list[Demonstration], max_length: int) -> ChatRenderer:
    """Return a renderer with a tokenizer made for the episodes, which reads images if they hold any."""
    vision = any(has_images(demo.messages) for demo in episodes)
    tokenizer = build_tokenizer(_texts(episodes), VOCAB_SIZE, max_length, VISION_TOKENS if vision else ())
    return ChatRenderer(tokenizer, image_processor=processor_of(tokenizer) if vision else None)


def _fit(policy: PolicyModel, data: list[Encoded], config: Config, seed: int) -> None:
    sft = config.sft
    kind = composed_section("train", TrainConfig)
    settings = kind(learning_rate=sft.learning_rate, zero_stage=0, betas=(0.9, 0.95))
    engine = TrainEngine(policy, settings, "float32")
    rng = random.Random(seed)
    weights = agent_weights(data)
    progress = Progress("sft: training", sft.steps, "steps")
    for step in range(sft.steps):
        shown = imitated(data, step, sft)
        batch = [shown[rng.randrange(len(shown))] for _ in range(sft.batch_size)]
        rate = one_cycle(step, sft.steps) * sft.learning_rate
        loss = _train_batch(
            engine, batch, weights, sft.observation_weight, config.train.micro_batch_tokens, rate
        )
        progress.note = f"loss {loss:.4f}"
        progress.advance()
    progress.end()
    _say(f"sft: trained {sft.steps} steps, {progress.note}")


def imitated(data: list[Encoded], step: int, sft: SftConfig) -> list[Encoded]:
    """Return the episodes that an optimizer step draws from; the expert may have played none of a few."""
    experts = [demo for demo in data if demo.expert] if step < sft.oracle_first * sft.steps else []
    return experts or data


def agent_weights(data: list[Encoded]) -> dict[str, float]:
    """Return the weight of each agent's tokens: 1 for an agent alone, more the less an agent says.

    By the square root: a keeper's one word is not learned beside calls of fifty tokens that count the same each, and
    the calls hardly are where all that an agent says counts as much as all that another does.
    """
    tokens: Counter[str] = Counter()
    for demo in data:
        tokens[demo.agent] += int(demo.mask.sum())
    return {agent: (tokens.total() / (len(tokens) * count)) ** 0.5 for agent, count in tokens.items()}


def token_weights(batch: list[Encoded], agents: dict[str, float], observation: float) -> torch.Tensor:
    """Return the weight of each token [B,T], padded on the right: its agent's where the agent wrote it, `observation`
    where it read it, 0 for the first, which nothing predicts."""
    weights = torch.zeros(len(batch), max(len(demo.ids) for demo in batch))
    for row, demo in zip(weights, batch, strict=True):
        own = torch.from_numpy(demo.mask)
        row[: len(own)] = torch.where(own, agents[demo.agent], observation)
    weights[:, 0] = 0.0
    return weights


def _train_batch(
    engine: TrainEngine,
    batch: list[Encoded],
    agents: dict[str, float],
    observation: float,
    budget: int,
    rate: float,
) -> float:
    weights = token_weights(batch, agents, observation)
    plan = plan_micro_batches([len(demo.ids) for demo in batch], budget, engine.num_ranks)[engine.rank]
    total = 0.0
    for number, rows in enumerate(plan):
        chosen = [batch[row] for row in rows]
        ids, _ = pad([(demo.ids, demo.mask) for demo in chosen])
        each = weights[rows, : ids.shape[1]]
        logp = engine.logp(ids, each > 0, 1.0, {IMAGES: [demo.images for demo in chosen]})
        loss = -(logp * each.to(logp.device)).sum() / weights.sum()
        engine.backward(loss, last=number == len(plan) - 1)
        total += float(loss.detach())
    engine.step(rate)
    return total


def pad(rows: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and loss masks [T] of rows as tensors [B,T], padded on the right."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (row_ids, row_mask) in enumerate(rows):
        ids[i, : len(row_ids)] = torch.from_numpy(row_ids.astype(np.int64))
        mask[i, : len(row_ids)] = torch.from_numpy(row_mask)
    return ids, mask


def one_cycle(step: int, steps: int, warmup_fraction: float = 0.1) -> float:
    """Return the factor of the peak learning rate: linear up, then cosine down to a hundredth."""
    warmup = max(1, int(steps * warmup_fraction))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.01 + 0.99 * 0.5 * (1 + float(np.cos(np.pi * progress)))


def _texts(episodes: list[Demonstration]) -> list[str]:
    """Return what the tokenizer is trained on."""
    texts = []
    for demo in islice(episodes, CORPUS_EPISODES):
        texts += [
            "<|im_start|>system\n",
            "<|im_start|>user\n",
            "<|im_start|>assistant\n",
            "<|im_start|>tool\n",
        ]
        for message in demo.messages:
            texts.append(_spoken(message.get("content")))
            texts += [_call_text(call) for call in message.get("tool_calls") or ()]
    return texts


def _spoken(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if "text" in part)
    return str(content or "")


def _call_text(call: dict[str, Any]) -> str:
    function = call["function"]
    return f'{{"name": "{function["name"]}", "arguments": {json.dumps(function["arguments"])}}}'


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
