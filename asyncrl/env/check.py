"""What `asyncrl env check` holds an environment to."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, Env, Step, ToolCall
from asyncrl.env.registry import load_env
from asyncrl.types import Message, Task

TASKS = 50
STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, whether it held, and what was seen."""

    name: str
    ok: bool
    seen: str


def to_action(message: Message) -> Action:
    """Return the action an assistant message stands for."""
    calls = tuple(
        ToolCall(
            str(call.get("id", f"call-{i}")), call["function"]["name"], dict(call["function"]["arguments"])
        )
        for i, call in enumerate(message.get("tool_calls") or ())
    )
    return Action(content=message.get("content") or "", tool_calls=calls)


def check_env(name: str, config: dict[str, Any] | None = None) -> list[Finding]:
    """Run every check on an environment; `config` is passed to it."""
    env_class = load_env(name)
    config = config or {}
    train, heldout = (
        list(islice(env_class.tasks(split, name, **config), TASKS)) for split in ("train", "heldout")
    )
    findings = [_splits(train, heldout)]
    with asyncio.Runner() as runner:
        findings.append(runner.run(_determinism(train, config)))
        findings += runner.run(_policies(train, config))
        findings.append(runner.run(_isolation(train, config)))
        findings.append(runner.run(_speed(train, config)))
    return findings


def _splits(train: list[Task], heldout: list[Task]) -> Finding:
    shared = {(t.seed, str(t.data)) for t in train} & {(t.seed, str(t.data)) for t in heldout}
    return Finding(
        "splits are disjoint",
        not shared,
        f"{len(train)} train, {len(heldout)} held out, {len(shared)} shared",
    )


async def _determinism(tasks: list[Task], config: dict[str, Any]) -> Finding:
    host = EnvHost()
    same = 0
    for task in tasks:
        first, second = [(await host.open(task, config)).messages for _ in range(2)]
        same += first == second
    await host.close_all()
    return Finding(
        "a seed gives one problem", same == len(tasks), f"{same} of {len(tasks)} opened alike twice"
    )


async def _policies(tasks: list[Task], config: dict[str, Any]) -> list[Finding]:
    findings = []
    for kind, wanted in (("oracle", True), ("random policy", False)):
        try:
            rewards = [(await _play(task, config, wanted, random.Random(i))) for i, task in enumerate(tasks)]
        except NotImplementedError:
            findings.append(Finding(f"{kind} scores", not wanted, "not implemented"))
            continue
        mean = sum(rewards) / len(rewards)
        findings.append(
            Finding(f"{kind} scores", mean >= 0.999 if wanted else mean < 0.999, f"mean reward {mean:.3f}")
        )
    return findings


async def _isolation(tasks: list[Task], config: dict[str, Any]) -> Finding:
    """Play all tasks interleaved and compare with one after the other."""
    alone = [await _play(task, config, False, random.Random(i)) for i, task in enumerate(tasks)]
    together = await asyncio.gather(
        *(_play(task, config, False, random.Random(i)) for i, task in enumerate(tasks))
    )
    equal = sum(a == b for a, b in zip(alone, together, strict=True))
    return Finding(
        "sessions do not touch each other",
        equal == len(tasks),
        f"{equal} of {len(tasks)} play alike side by side",
    )


async def _speed(tasks: list[Task], config: dict[str, Any]) -> Finding:
    start = time.perf_counter()
    for i, task in enumerate(tasks):
        await _play(task, config, False, random.Random(i))
    rate = len(tasks) / (time.perf_counter() - start)
    return Finding("speed", True, f"{rate:.0f} episodes/s in one process")


async def _play(task: Task, config: dict[str, Any], expert: bool, rng: random.Random) -> float:
    host = EnvHost()
    session = await host.open(task, config)
    env: Env = session.env
    messages, total = list(session.messages), 0.0
    try:
        for turn in range(env.max_turns):
            message = env.oracle(messages) if expert else env.random_policy(messages, rng)
            step: Step = await host.step(session.id, turn, to_action(message), STEP_TIMEOUT_S)
            total += step.reward
            if step.done:
                break
            messages += [message, *step.messages]
    finally:
        await host.close_all()
    return total
