"""Episodes of scripted policies, as tokens with a loss mask: the data of a supervised warm start."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.env.protocol import MAIN_AGENT, Env, Step
from asyncrl.env.scripted import to_action
from asyncrl.errors import ConfigError
from asyncrl.images import moved
from asyncrl.together import together
from asyncrl.types import Message, PlacedImage


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One agent's part of a scripted episode as messages, in order, with the tools it was offered."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    reward: float
    expert: bool = False
    """Whether the oracle played it."""
    agent: str = MAIN_AGENT
    """Who speaks, without what follows a "/" in its name."""


def demonstrations(
    env_class: type[Env],
    env_name: str,
    config: dict[str, Any],
    count: int,
    oracle_fraction: float,
    seed: int,
    concurrency: int = 1,
) -> Iterator[Demonstration]:
    """Play `count` train-split tasks, `concurrency` of them at once; yield them in the order of the tasks.

    A share is played by the environment's oracle, the rest by its random policy. An episode with several agents
    gives a demonstration for each. Deterministic by `seed` and `concurrency`. Raises `ConfigError` when the
    environment has no scripted policies.
    """
    # One generator per slot, so that the draws of an episode do not depend on the speed of the others.
    draws = [random.Random(seed), *(random.Random(f"{seed}/{place}") for place in range(1, concurrency))]
    tasks = islice(env_class.tasks("train", env_name, **config), count)
    with asyncio.Runner() as runner:
        while batch := list(islice(tasks, concurrency)):
            envs = [env_class(task, **config) for task in batch]
            plays = [
                (env, rng.random() < oracle_fraction, rng) for env, rng in zip(envs, draws, strict=False)
            ]
            for demos in runner.run(_play_together(plays, env_name)):
                yield from demos


async def _play_together(
    plays: Sequence[tuple[Env, bool, random.Random]], env_name: str
) -> list[list[Demonstration]]:
    async def one(env: Env, expert: bool, rng: random.Random) -> list[Demonstration]:
        try:
            return await _play(env, expert, rng)
        except NotImplementedError:
            kind = "oracle" if expert else "random_policy"
            raise ConfigError(
                f"environment {env_name!r} has no {kind}, which a supervised start needs"
            ) from None

    return await together(one(*play) for play in plays)


async def _play(env: Env, expert: bool, rng: random.Random) -> list[Demonstration]:
    agent, rewards = MAIN_AGENT, defaultdict[str, float](float)
    talks = {agent: Demonstration(list(await _maybe(env.reset())), list(env.tools), 0.0, expert)}
    try:
        for _ in range(env.max_turns):
            messages = talks[agent].messages
            message = env.oracle(messages) if expert else env.random_policy(messages, rng)
            messages.append(message)
            step: Step = await _maybe(env.step(to_action(message)))
            for name, reward in ((agent, step.reward), *step.rewards.items()):
                rewards[name] += reward
            if step.done:
                break
            agent = agent if step.agent is None else step.agent
            new = Demonstration([], step.tools or [], 0.0, expert, agent.partition("/")[0])
            talks.setdefault(agent, new).messages.extend(step.messages)
    finally:
        await _maybe(env.close())
    spoken = {name: d for name, d in talks.items() if any(m["role"] == "assistant" for m in d.messages)}
    return [replace(demo, reward=rewards[name]) for name, demo in spoken.items()]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A demonstration as tokens. The arrays have one length L."""

    ids: np.ndarray
    """[L] int32."""
    mask: np.ndarray
    """[L] bool, True on assistant turns."""
    images: tuple[PlacedImage, ...]
    expert: bool
    agent: str


def encode(renderer: ChatRenderer, demo: Demonstration) -> Encoded:
    """Return a demonstration's tokens, built exactly as a rollout builds its context: the warm start sees the tokens
    that sampling will."""
    first = next(i for i, m in enumerate(demo.messages) if m["role"] == "assistant")
    ids: list[np.ndarray] = []
    mask: list[np.ndarray] = []
    images: list[PlacedImage] = []
    length = 0

    def append(added: np.ndarray, sampled: bool, messages: list[Message]) -> None:
        nonlocal length
        images.extend(moved(renderer.images(added, messages), length))
        ids.append(added)
        mask.append(np.full(len(added), sampled))
        length += len(added)

    append(renderer.opening(demo.messages[:first], demo.tools), False, demo.messages[:first])
    pending: list[Message] = []
    for message in demo.messages[first:]:
        if message["role"] == "assistant":
            if pending:
                append(renderer.observation(pending, demo.tools), False, pending)
                pending = []
            append(renderer.assistant(message, demo.tools), True, [])
        else:
            pending.append(message)
    return Encoded(np.concatenate(ids), np.concatenate(mask), tuple(images), demo.expert, demo.agent)


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
