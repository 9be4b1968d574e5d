"""Evaluation through a rollout worker: the same path as training, on the held-out split."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.config import Config
from asyncrl.credentials import authorization, bearer
from asyncrl.data.codec import decode_group, pack, task_to_map, unpack
from asyncrl.env.registry import load_env
from asyncrl.errors import InfrastructureError
from asyncrl.evaluation.statistics import Interval, clustered_mean, pass_at_k
from asyncrl.launch.machines.placement import Placement, env_names
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup
from asyncrl.launch.reports.engine_troubles import EngineTroubleReport, EngineTroubles
from asyncrl.launch.roles.roles import beside_words, start_beside_workers
from asyncrl.patience import Patience
from asyncrl.progress import Progress, elapsing
from asyncrl.rollout.player import MAX_ATTEMPTS
from asyncrl.services.env.client import OPEN_TIMEOUT_S
from asyncrl.tasks.tasks import tasks_of
from asyncrl.tls import client_context
from asyncrl.together import together
from asyncrl.types import FailureClass, Group, Task

RETRY_PAUSE_S = 1.0
TELL_S = 1.0
"""Between two looks at whether to say how far the tasks are."""
UNLIMITED = aiohttp.ClientTimeout(total=None)
"""Of calls whose end a `Patience` decides."""

Seen = Callable[[Group], None]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """A held-out evaluation. Rates are over episodes that did not fail by infrastructure or environment."""

    mean: float
    """Mean reward over tasks."""
    ci_low: float | None
    """With `ci_high` the interval at 95 %; None from a single task, which shows no spread."""
    ci_high: float | None
    tasks: int
    samples: int
    success: float | None
    success_ci: tuple[float, float] | None
    pass_at: dict[str, float]
    failed: dict[str, int]
    truncated: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(groups: list[Group], samples: int) -> EvalResult:
    """Turn groups of `samples` episodes a task into rates and intervals.

    Environment and infrastructure failures are counted apart. Raises `InfrastructureError` when nothing is left.
    """
    # An episode that branches has further trajectories, numbered after the first of each.
    valid = {
        g.task.id: [t for t in g.trajectories[:samples] if t.failure in (None, FailureClass.AGENT)]
        for g in groups
    }
    failed: dict[str, int] = {}
    for group in groups:
        for t in group.trajectories:
            if t.failure is not None:
                failed[str(t.failure)] = failed.get(str(t.failure), 0) + 1
    rewards = {task: [t.reward for t in kept] for task, kept in valid.items() if kept}
    if not rewards:
        errors = {t.error for g in groups for t in g.trajectories if t.error}
        raise InfrastructureError(f"evaluation: every episode failed: {'; '.join(sorted(errors)[:3])}")
    reward = clustered_mean(rewards)
    judged = {task: [float(bool(t.success)) for t in kept] for task, kept in valid.items() if kept}
    has_verdict = any(t.success is not None for kept in valid.values() for t in kept)
    success = clustered_mean(judged) if has_verdict else None
    return EvalResult(
        mean=reward.mean,
        ci_low=reward.ci_low,
        ci_high=reward.ci_high,
        tasks=reward.tasks,
        samples=samples,
        success=success.mean if success else None,
        success_ci=_bounds(success) if success else None,
        pass_at=_pass_at(judged) if has_verdict else {},
        failed=failed,
        truncated=sum(t.status == "truncated" for kept in valid.values() for t in kept),
    )


def _bounds(interval: Interval) -> tuple[float, float] | None:
    if interval.ci_low is None or interval.ci_high is None:
        return None
    return interval.ci_low, interval.ci_high


def _pass_at(judged: dict[str, list[float]]) -> dict[str, float]:
    smallest = min(len(values) for values in judged.values())
    found, k = {}, 1
    while k <= smallest:
        estimates = [pass_at_k(len(v), int(sum(v)), k) for v in judged.values()]
        found[str(k)] = sum(estimates) / len(estimates)
        k *= 2
    return found


def evaluate(
    worker_url: str, config: Config, env: str, tasks: int, samples: int, token: str | None = None
) -> EvalResult:
    """Run the first `tasks` held-out tasks of `env`, `samples` times each, on the worker at `worker_url`.

    token: a bearer token; None for that of this process, see `credentials`.

    Sampling is seeded, so two evaluations of one checkpoint agree. Raises `InfrastructureError`.
    """
    return asyncio.run(evaluate_with(worker_url, config, env, tasks, samples, token))


async def evaluate_with(
    worker_url: str,
    config: Config,
    env: str,
    tasks: int,
    samples: int,
    token: str | None = None,
    retry_s: float = 0.0,
    seen: Seen | None = None,
) -> EvalResult:
    """See `evaluate`. When the worker dies meanwhile, the call is repeated for `retry_s` while the worker restarts.

    seen: called with each task's group as soon as it has been played.
    """
    return summarize(await _play(worker_url, config, env, tasks, samples, token, retry_s, seen), samples)


def play_checkpoint(
    config: Config, folder: Path, checkpoint: str, env: str, tasks: int, samples: int
) -> list[Group]:
    """Start an engine, environments and a worker in `folder`, play the held-out tasks, and stop them."""
    load_env(env)
    config = _of_env(config, env)
    return play_tasks(config, folder, checkpoint, list(islice(tasks_of(config, "heldout"), tasks)), samples)


def play_tasks(
    config: Config,
    folder: Path,
    checkpoint: str,
    tasks: Sequence[Task],
    samples: int,
    seen: Seen | None = None,
) -> list[Group]:
    """Start an engine, environments and a worker in `folder`, play tasks `samples` times each, and stop them."""
    process_group = ProcessGroup(folder)
    (folder / "config.json").write_text(config.model_dump_json())
    try:
        with elapsing("starting an engine and a rollout worker"):
            worker = start_player(process_group, config, folder, checkpoint)[-1]
        token = process_group.credentials.bearer("rollout")
        body = [task_to_map(task) for task in tasks]
        return asyncio.run(_run(worker.url, body, samples, config, token, 0.0, seen))
    finally:
        process_group.stop()


def start_player(
    process_group: ProcessGroup, config: Config, folder: Path, checkpoint: str
) -> tuple[list[ManagedProcess], ManagedProcess, ManagedProcess]:
    """Start an engine and a worker of the configuration in `folder`, environments where they have a service, and what
    workers have for themselves; return these others, the engine and the worker when all serve."""
    services = [
        process_group.start(name, ["serve", "env", "--folder", str(folder)]) for name in env_names(config)[:1]
    ]
    start_s = config.run.start_timeout_s
    beside = start_beside_workers(process_group, config, folder, Placement())
    # An engine takes the memory of a GPU that is free when it starts.
    beside_urls = {role: process_group.wait_ready(process, start_s) for role, process in beside.items()}
    engine = process_group.start(
        "engine", ["serve", "engine", "--folder", str(folder), "--model", checkpoint]
    )
    env_urls = [process_group.wait_ready(service, start_s) for service in services]
    engine_url = process_group.wait_ready(engine, start_s)
    argv = ["serve", "rollout", "--folder", str(folder), "--model", checkpoint, "--engines", engine_url]
    argv += [*(["--env", *env_urls] if env_urls else []), *beside_words(beside_urls)]
    worker = process_group.start("rollout", argv)
    process_group.wait_ready(worker, start_s)
    return [*services, *beside.values()], engine, worker


async def _play(
    worker_url: str,
    config: Config,
    env: str,
    tasks: int,
    samples: int,
    token: str | None,
    retry_s: float = 0.0,
    seen: Seen | None = None,
) -> list[Group]:
    chosen = list(islice(tasks_of(_of_env(config, env), "heldout"), tasks))
    body = [task_to_map(task) for task in chosen]
    return await _run(worker_url, body, samples, config, token, retry_s, seen)


def _of_env(config: Config, env: str) -> Config:
    return config.model_copy(update={"env": config.env.model_copy(update={"name": env})})


async def _run(
    url: str,
    tasks: list[dict[str, Any]],
    samples: int,
    config: Config,
    token: str | None,
    retry_s: float,
    seen: Seen | None = None,
) -> list[Group]:
    """Have each task played by a call of its own, as many at once as the engines decode.

    However many tasks there are, a call has one task's time, and only those whose call broke are repeated.
    """
    headers = {"Content-Type": "application/msgpack"} | authorization(bearer(token, "rollout"))
    patience = Patience(task_timeout_s(config))
    at_once = asyncio.Semaphore(max(1, config.engine.max_num_seqs * config.engine.count // samples))
    told = Progress("playing tasks", len(tasks), "tasks")
    same = {"samples": samples, "temperature": config.eval.temperature, "seed": config.run.seed}

    async def play(task: dict[str, Any]) -> Group:
        async with at_once:
            group = await call_until_answered(http, url, {"tasks": [task], **same}, retry_s, patience)
        told.advance(1)
        if seen is not None:
            seen(group)
        return group

    async def tell() -> None:
        troubles = EngineTroubles(bearer(token, "rollout"), EngineTroubleReport())
        while True:
            await asyncio.sleep(TELL_S)
            told.advance(0)
            await troubles.tick([url])

    connector = aiohttp.TCPConnector(limit=0, ssl=client_context() or True)
    async with aiohttp.ClientSession(headers=headers, timeout=UNLIMITED, connector=connector) as http:
        telling = asyncio.create_task(tell())
        try:
            return await together(play(task) for task in tasks)
        finally:
            telling.cancel()
            told.end()


def task_timeout_s(config: Config) -> float:
    """Return for how long no task at all may have been played: each attempt waits for a place of another's episode,
    and plays."""
    rollout = config.rollout
    attempt_s = 2 * rollout.episode_timeout_s + rollout.lease_s + OPEN_TIMEOUT_S
    return max(MAX_ATTEMPTS.values()) * attempt_s


async def call_until_answered(
    http: aiohttp.ClientSession, url: str, request: dict[str, Any], retry_s: float, patience: Patience
) -> Group:
    """Call again while the worker does not answer, for `retry_s` after it last was there.

    patience: of all calls to the worker.
    """
    gone_since = None
    while True:
        called = time.monotonic()
        try:
            return await patience.wait(_call(http, url, request))
        except TimeoutError as error:
            name = request["tasks"][0]["id"]
            raise InfrastructureError(
                f"evaluation: {url}: task {name!r} was not played within {patience.limit_s:g} s, nor was another; the "
                "limit follows from rollout.episode_timeout_s"
            ) from error
        except aiohttp.ClientError as error:
            # A call that broke after a while had been taken: the worker was there until then.
            failed = time.monotonic()
            if gone_since is None or failed - called > RETRY_PAUSE_S:
                gone_since = failed
            if failed - gone_since >= retry_s:
                raise InfrastructureError(f"evaluation: {url}: {type(error).__name__}: {error}") from error
            await asyncio.sleep(RETRY_PAUSE_S)


async def _call(http: aiohttp.ClientSession, url: str, request: dict[str, Any]) -> Group:
    async with http.post(f"{url}/v1/rollouts", data=pack(request)) as response:
        if response.status != 200:
            raise InfrastructureError(f"evaluation: HTTP {response.status}: {(await response.text())[:500]}")
        return decode_group(unpack(await response.read())["groups"][0])
