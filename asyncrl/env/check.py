"""What `asyncrl env check` holds an environment to.

An environment may help with up to three optional members: `levels` (difficulties that its `level` setting takes),
`problem_key()` (a text equal for equal problems, compared between the splits) and `secrets()` (texts, such as the
answer, that no observation may contain before the episode is over).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, Env, Step, ToolCall
from asyncrl.env.registry import load_env
from asyncrl.types import Message, Task

TASKS = 50
"""Training tasks looked at."""
OTHER_TASKS = 10
"""Held-out tasks and tasks of each further level."""
STEP_TIMEOUT_S = 60.0
LAUNCHER = "asyncrl.env.sandbox.jail.client"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, whether it held, and what was seen."""

    name: str
    ok: bool
    seen: str


@dataclass(slots=True)
class Episode:
    """What one scripted episode showed."""

    reward: float = 0.0
    observations: list[str] = field(default_factory=list)
    """Everything the policy was shown before the last step, as JSON."""
    leaked: list[str] = field(default_factory=list)
    """Secrets found among them."""


def to_action(message: Message) -> Action:
    """Return the action an assistant message stands for."""
    calls = tuple(
        ToolCall(
            str(call.get("id", f"call-{i}")), call["function"]["name"], dict(call["function"]["arguments"])
        )
        for i, call in enumerate(message.get("tool_calls") or ())
    )
    return Action(content=message.get("content") or "", tool_calls=calls)


def check_env(name: str, config: dict[str, Any] | None = None, num_tasks: int = TASKS) -> list[Finding]:
    """Run every check on `num_tasks` tasks of an environment; `config` is passed to it."""
    config = config or {}
    with asyncio.Runner() as runner:
        try:
            return runner.run(_check(name, config, num_tasks))
        finally:
            runner.run(_end_launcher())


async def _check(name: str, config: dict[str, Any], num_tasks: int) -> list[Finding]:
    env_class = load_env(name)
    train, heldout = (
        list(islice(env_class.tasks(split, name, **config), num_tasks)) for split in ("train", "heldout")
    )
    findings = [await _splits(train, heldout, config), await _determinism(train, config)]
    findings += await _oracle(env_class, train, heldout, config)
    try:
        start = time.perf_counter()
        alone = [await _play(task, config, False, random.Random(i)) for i, task in enumerate(train)]
        rate = len(train) / (time.perf_counter() - start)
    except NotImplementedError:
        return [*findings, Finding("random policy scores", True, "not implemented")]
    mean = sum(e.reward for e in alone) / len(alone)
    findings.append(Finding("random policy scores", mean < 0.999, f"mean reward {mean:.3f}"))
    findings.append(_leaks(env_class, alone))
    findings.append(await _isolation(train, config, alone))
    return [*findings, Finding("speed", True, f"{rate:.0f} episodes/s in one process")]


async def _splits(train: list[Task], heldout: list[Task], config: dict[str, Any]) -> Finding:
    """Compare seeds and data, and where the environment can tell, the problems themselves."""
    shared = {(t.seed, str(t.data)) for t in train} & {(t.seed, str(t.data)) for t in heldout}
    seen = f"{len(train)} train, {len(heldout)} held out, {len(shared)} shared"
    if not hasattr(load_env(train[0].env), "problem_key"):
        return Finding("splits are disjoint", not shared, seen)
    keys = [{await _problem_key(task, config) for task in tasks} for tasks in (train, heldout)]
    same = keys[0] & keys[1]
    seen += f"; {len(keys[0])} and {len(keys[1])} different problems, {len(same)} in both"
    return Finding("splits are disjoint", not shared and not same, seen)


async def _problem_key(task: Task, config: dict[str, Any]) -> str:
    host = EnvHost()
    session = await host.open(task, config)
    try:
        return session.env.problem_key()  # type: ignore[attr-defined]
    finally:
        await host.close_all()


async def _determinism(tasks: list[Task], config: dict[str, Any]) -> Finding:
    """Open every task twice and play it twice by the same policy."""
    same = 0
    for i, task in enumerate(tasks):
        try:
            first, second = [await _play(task, config, False, random.Random(i)) for _ in range(2)]
            same += (first.reward, first.observations) == (second.reward, second.observations)
        except NotImplementedError:
            host = EnvHost()
            opened = [(await host.open(task, config)).messages for _ in range(2)]
            await host.close_all()
            same += opened[0] == opened[1]
    return Finding("a seed gives one problem", same == len(tasks), f"{same} of {len(tasks)} went alike twice")


async def _oracle(
    env_class: type[Env], train: list[Task], heldout: list[Task], config: dict[str, Any]
) -> list[Finding]:
    """Play the expert on both splits, and on every level where there are levels."""
    groups = [("", train, config), (" held out", heldout[:OTHER_TASKS], config)]
    groups += [
        (f" on level {level}", train[:OTHER_TASKS], config | {"level": level})
        for level in getattr(env_class, "levels", ())
    ]
    seen, ok = [], True
    try:
        for what, tasks, settings in groups:
            rewards = [(await _play(task, settings, True, random.Random(0))).reward for task in tasks]
            mean = sum(rewards) / len(rewards)
            ok = ok and mean >= 0.999
            seen.append(f"mean reward {mean:.3f}{what}")
    except NotImplementedError:
        seen, ok = ["not implemented"], getattr(env_class, "oracle_optional", False)
    return [Finding("oracle scores", ok, ", ".join(seen))]


def _leaks(env_class: type[Env], episodes: list[Episode]) -> Finding:
    name = "observations keep the answer secret"
    if not hasattr(env_class, "secrets"):
        return Finding(name, True, "the environment declares no secrets")
    leaked = [secret for episode in episodes for secret in episode.leaked]
    seen = f"{len(leaked)} secrets shown in {len(episodes)} episodes"
    return Finding(name, not leaked, seen + (f", such as {leaked[0]!r:.80}" if leaked else ""))


async def _isolation(tasks: list[Task], config: dict[str, Any], alone: list[Episode]) -> Finding:
    """Play all tasks side by side and compare with one after the other."""
    together = await asyncio.gather(
        *(_play(task, config, False, random.Random(i)) for i, task in enumerate(tasks))
    )
    equal = sum(
        (a.reward, a.observations) == (b.reward, b.observations) for a, b in zip(alone, together, strict=True)
    )
    return Finding(
        "sessions do not touch each other",
        equal == len(tasks),
        f"{equal} of {len(tasks)} play alike side by side",
    )


async def _play(task: Task, config: dict[str, Any], expert: bool, rng: random.Random) -> Episode:
    host = EnvHost()
    session = await host.open(task, config)
    env: Env = session.env
    messages, episode = list(session.messages), Episode()
    shown = [*messages, *env.tools]
    try:
        for turn in range(env.max_turns):
            message = env.oracle(messages) if expert else env.random_policy(messages, rng)
            step: Step = await host.step(session.id, turn, to_action(message), STEP_TIMEOUT_S)
            episode.reward += step.reward
            if step.done:
                break
            messages += [message, *step.messages]
            shown += step.messages
    finally:
        await host.close_all()
    episode.observations = [json.dumps(item, sort_keys=True) for item in shown]
    texts = [str(item.get("content", item)) for item in shown]
    secrets: tuple[str, ...] = env.secrets() if hasattr(env, "secrets") else ()
    episode.leaked = [secret for secret in secrets if any(secret in text for text in texts)]
    return episode


async def _end_launcher() -> None:
    """End the sandbox launcher that environments of this event loop have used, if any."""
    if LAUNCHER in sys.modules:
        await sys.modules[LAUNCHER].LauncherClient.close_shared()
