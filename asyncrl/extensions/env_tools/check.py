"""The checks of `asyncrl env check`.

An environment may support the checks with four optional members: `levels` (difficulties that its `level` setting
takes), `problem_key()` (a text equal for equal problems, compared between the splits), `secrets()` (texts, such as the
answer, that no observation may contain before the episode is over) and `async examine()` (what is wrong with the task
itself, "" for nothing).
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psutil

from asyncrl.env.host import EnvHost, end_launcher
from asyncrl.env.protocol import Env
from asyncrl.env.registry import load_env
from asyncrl.env.scripted import Episode, blunder, play
from asyncrl.errors import EpisodeError
from asyncrl.together import together
from asyncrl.types import Task

TASKS = 50
"""Training tasks that are played."""
OTHER_TASKS = 10
"""Held-out tasks and tasks of each further level."""
LEAST_TASKS = 5
"""Tasks that are played even if the environment is slow."""
BUDGET_S = 5.0
"""Wall time for playing all training tasks once; fewer are played if it would take longer."""
BLUNDERED_TASKS = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its name, whether it passed, and what was seen."""

    name: str
    ok: bool
    seen: str


def check_env(name: str, config: dict[str, Any] | None = None, num_tasks: int = TASKS) -> list[Finding]:
    """Run every check on up to `num_tasks` tasks of an environment; `config` is passed to it.

    A failed episode ends the checks and is the last finding. Raises `ConfigError` for wrong settings.
    """
    config = config or {}
    with asyncio.Runner() as runner:
        try:
            return runner.run(_check(name, config, num_tasks))
        except EpisodeError as error:
            return [Finding("episodes can be played", False, f"{type(error).__name__}: {error}")]
        finally:
            runner.run(end_launcher())


async def _check(name: str, config: dict[str, Any], num_tasks: int) -> list[Finding]:
    env_class = load_env(name)
    train, heldout = (
        list(islice(env_class.tasks(split, name, **config), num_tasks)) for split in ("train", "heldout")
    )
    findings = [await _splits(train, heldout, config)]
    train = train[: await _affordable(train, config)]
    findings += await _oracle(env_class, train, heldout, config)
    findings += await _examined(env_class, [*train, *heldout[:OTHER_TASKS]], config)
    findings.append(await _blunders(train, config))
    try:
        first, _ = await _play_all(train, config)
        before = _held()
        second, rate = await _play_all(train, config)
        after = _held()
        side_by_side = await together(
            play(task, config, False, random.Random(i)) for i, task in enumerate(train)
        )
    except NotImplementedError:
        return [
            *findings,
            await _openings(train, config),
            Finding("random policy scores", True, "optional, and there is none"),
        ]
    findings.append(_alike("a seed gives one problem", first, second, "went alike twice"))
    mean = sum(e.reward for e in first) / len(first)
    findings.append(Finding("random policy scores", mean < 0.999, f"mean reward {mean:.3f}"))
    findings += [_leaks(env_class, first), _messages([*first, *second])]
    findings.append(
        _alike("sessions do not touch each other", second, side_by_side, "play alike side by side")
    )
    findings.append(_leftovers(before, after, len(train)))
    return [*findings, Finding("speed", True, f"{rate:.1f} episodes/s in one process")]


async def _affordable(tasks: list[Task], config: dict[str, Any]) -> int:
    """Return how many tasks fit into the time budget, estimated from the second episode (the first one warms up)."""
    taken_s = 0.0
    for task in tasks[:2]:
        start = time.perf_counter()
        try:
            await play(task, config, False, random.Random(0))
        except NotImplementedError:
            return len(tasks)
        taken_s = time.perf_counter() - start
    return max(LEAST_TASKS, min(len(tasks), int(BUDGET_S / max(taken_s, 1e-6))))


async def _play_all(tasks: list[Task], config: dict[str, Any]) -> tuple[list[Episode], float]:
    """Play each task with the random policy, one after the other; return the episodes and their number per second."""
    start = time.perf_counter()
    episodes = [await play(task, config, False, random.Random(i)) for i, task in enumerate(tasks)]
    return episodes, len(tasks) / (time.perf_counter() - start)


async def _splits(train: list[Task], heldout: list[Task], config: dict[str, Any]) -> Finding:
    """Compare seeds and data, and the problems themselves if the environment names them."""
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


async def _openings(tasks: list[Task], config: dict[str, Any]) -> Finding:
    """Open every task twice, which is all that can be compared without a random policy."""
    same = 0
    for task in tasks:
        host = EnvHost()
        opened = [(await host.open(task, config)).messages for _ in range(2)]
        await host.close_all()
        same += opened[0] == opened[1]
    return Finding(
        "a seed gives one problem", same == len(tasks), f"{same} of {len(tasks)} opened alike twice"
    )


async def _examined(env_class: type[Env], tasks: list[Task], config: dict[str, Any]) -> list[Finding]:
    """Ask each task what is wrong with it, where the environment can tell."""
    if not hasattr(env_class, "examine"):
        return []
    problems = []
    for task in tasks:
        env = load_env(task.env)(task, **config)
        try:
            if problem := await env.examine():  # type: ignore[attr-defined]
                problems.append(problem)
        finally:
            if (closing := env.close()) is not None:
                await closing
    seen = "; ".join(problems[:5]) or f"{len(tasks)} of {len(tasks)}"
    return [Finding("tasks hold", not problems, seen)]


async def _oracle(
    env_class: type[Env], train: list[Task], heldout: list[Task], config: dict[str, Any]
) -> list[Finding]:
    """Play the expert on both splits, and on every level if there are levels."""
    groups = [("", train, config), (" held out", heldout[:OTHER_TASKS], config)]
    groups += [
        (f" on level {level}", train[:OTHER_TASKS], config | {"level": level})
        for level in getattr(env_class, "levels", ())
    ]
    seen, ok = [], True
    try:
        for what, tasks, settings in groups:
            rewards = [(await play(task, settings, True, random.Random(0))).reward for task in tasks]
            mean = sum(rewards) / len(rewards)
            ok = ok and mean >= 0.999
            seen.append(f"mean reward {mean:.3f}{what}")
    except NotImplementedError:
        # It is needed for a tiny base model alone, and a model of one's own needs none.
        seen = ["optional, and there is none"]
    return [Finding("oracle scores", ok, ", ".join(seen))]


def _leaks(env_class: type[Env], episodes: list[Episode]) -> Finding:
    name = "observations keep the answer secret"
    if not hasattr(env_class, "secrets"):
        return Finding(name, True, "the environment declares no secrets")
    leaked = [secret for episode in episodes for secret in episode.leaked]
    seen = f"{len(leaked)} secrets shown in {len(episodes)} episodes"
    return Finding(name, not leaked, seen + (f", such as {leaked[0]!r:.80}" if leaked else ""))


def _messages(episodes: list[Episode]) -> Finding:
    malformed = [text for episode in episodes for text in episode.malformed]
    seen = f"{len(malformed)} malformed in {len(episodes)} episodes"
    return Finding(
        "messages are well formed", not malformed, seen + (f": {malformed[0]}" if malformed else "")
    )


async def _blunders(tasks: list[Task], config: dict[str, Any]) -> Finding:
    """All mistakes of the agent must be answered."""
    total, wrong = 0, []
    for task in tasks[:BLUNDERED_TASKS]:
        count, found = await blunder(task, config)
        total += count
        wrong += found
    seen = f"{total - len(wrong)} of {total} nonsense actions"
    return Finding("mistakes are answered", not wrong, seen + (f"; {wrong[0]:.200}" if wrong else ""))


def _alike(name: str, left: list[Episode], right: list[Episode], how: str) -> Finding:
    """Compare the episodes of two runs, task by task."""
    same = sum(
        (a.reward, a.observations) == (b.reward, b.observations) for a, b in zip(left, right, strict=True)
    )
    return Finding(name, same == len(left), f"{same} of {len(left)} {how}")


def _held() -> dict[str, int]:
    """Return what this process holds: open descriptors and child processes."""
    process = psutil.Process()
    return {"descriptors": process.num_fds(), "child processes": len(process.children())}


def _leftovers(before: dict[str, int], after: dict[str, int], num_episodes: int) -> Finding:
    """Compare what was held before and after a number of episodes; a leak grows by one for each."""
    more = {what: after[what] - before[what] for what in before}
    seen = ", ".join(f"{count:+d} {what}" for what, count in more.items())
    return Finding(
        "sessions leave nothing behind",
        all(count < num_episodes / 2 for count in more.values()),
        f"{seen} after {num_episodes} episodes",
    )
