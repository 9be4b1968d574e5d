"""The rollout worker process: plays leased groups, and tasks on request.

    asyncrl serve rollout --folder runs/NAME --buffer URL --engines URL --env URL

`POST /v1/rollouts` runs tasks and returns their trajectories; it needs no buffer. `GET /healthz`,
`GET /v1/status` and `GET /metrics` report its state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import Config
from asyncrl.credentials import Access, Credentials, own_credentials
from asyncrl.data.codec import encode_group, pack, task_from_map, unpack
from asyncrl.errors import AsyncRLError, ConfigError, InputError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.elsewhere import PlayerParts, Players, played_elsewhere
from asyncrl.rollout.episode import ChatPlayer, episode_ends, episode_settings
from asyncrl.rollout.group import EpisodeGroupRunner, GroupRunner
from asyncrl.rollout.group_reward import group_rewards
from asyncrl.rollout.player import EpisodePlayer
from asyncrl.rollout.strategies.parts import FurtherPolicy, WorkerParts
from asyncrl.rollout.strategies.policies import MultiPolicyGenerator
from asyncrl.rollout.strategies.table import configured
from asyncrl.rollout.turn_generators import evaluation_generator, training_generator
from asyncrl.rollout.worker import RolloutLoop
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.run.model_folder import vocab_size
from asyncrl.services.buffer.client import Addresses, BufferClient
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.concurrency import Concurrency
from asyncrl.services.engine.retrying import RetryingGenerator
from asyncrl.services.engine.router import EngineRouter
from asyncrl.services.env.client import OPEN_TIMEOUT_S, EnvClient, LocalEnvs
from asyncrl.services.http.app import Background, create_app, serve
from asyncrl.services.http.metrics import add_metrics
from asyncrl.together import to_their_ends, together
from asyncrl.tracing import start_tracing, stop_tracing
from asyncrl.types import MAIN_POLICY, Lease, Task

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_TASKS_PER_CALL = 4096
MEMBERS_EVERY_S = 3.0
RESTART_LOOK_S = 0.5
"""How often a worker checks whether its groups must start over."""
_COUNTERS = (
    "groups",
    "turns",
    "sampled_tokens",
    "context_tokens",
    "cached_tokens",
    "history_forks",
    "leases_lost",
)


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyAddresses:
    """Where a further policy's buffer and engines are; no buffer where nothing is trained."""

    engines: Sequence[str]
    buffer: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _PolicyClients:
    router: EngineRouter
    buffer: BufferClient | None


class RolloutService:
    """Holds a worker's clients and its loop."""

    def __init__(
        self,
        config: Config,
        model: str,
        engines: Sequence[str],
        envs: Sequence[str],
        buffer: str,
        credentials: Credentials,
        name: str,
        policies: Mapping[str, PolicyAddresses] | None = None,
        beside: Mapping[str, str] | None = None,
        make_players: Callable[[PlayerParts], Players] | None = None,
    ) -> None:
        """make_players: makes what plays the episodes, in place of what the recipe's `env.name` says."""
        self.config = config
        # A worker's credentials are good for one name only.
        self.name = name = credentials.caller.name or name
        self._credentials = credentials
        self._vocab_size = vocab_size(model)
        self._addresses = {MAIN_POLICY: (Addresses("engine", engines), Addresses("env", envs))}
        """Where the engines and environments are that each policy's job names."""
        self.router = EngineRouter([self._client(url) for url in engines])
        self.engines = RetryingGenerator(self.router, config.outage_timeout_s)
        # A session that holds a place ends within one of these times, so a place must be freed within their sum.
        place_timeout_s = config.rollout.episode_timeout_s + config.rollout.lease_s + OPEN_TIMEOUT_S
        self.envs: EnvClient | LocalEnvs = (
            EnvClient(
                list(envs),
                credentials.bearer("env"),
                place_timeout_s=place_timeout_s,
                batch_delay_s=config.rollout.batch_delay_s,
            )
            if envs and config.env.services != 0
            else LocalEnvs(
                config.env.max_sessions,
                place_timeout_s,
                config.env.limits,
                {config.env.name: config.env.config},
            )
        )
        self.renderer = load_renderer(model, config.model.chat_template_args, config.model.chat_template)
        self.format = load_format(config.model.tool_format, config.model.reasoning_format, self.renderer)
        self.buffer = (
            BufferClient(buffer, credentials.bearer("buffer"), config.buffer_outage_s) if buffer else None
        )
        self.policies = self._policies(policies or {})
        for further, where in (policies or {}).items():
            self._addresses[further] = (Addresses("engine", where.engines), Addresses("env", ()))
        tell = None if self.buffer is None else self.buffer.tell
        context = WorkerContext(config, beside or {}, credentials.bearer, tell)
        self.ends = episode_ends(context)
        self.rewards = group_rewards(context)
        # What does not go with the model is refused now, and not when it is evaluated.
        evaluation_generator(config, self.renderer, self.engines)
        if make_players is None and (elsewhere := played_elsewhere(config.env.name)) is not None:
            make_players = elsewhere.players
        self.players: Players | None = None
        """What plays the episodes, where the worker does not."""
        if make_players is not None:
            routed = _RoutedEngines(self.router, self.engines)
            self.players = make_players(
                PlayerParts(config, routed, self.renderer, self.format, credentials.bearer, self.ends)
            )
        self.loop: RolloutLoop | None = None
        if self.buffer is not None:
            seed = config.run.seed if config.deterministic else None
            self.loop = RolloutLoop(
                name=name,
                buffer=self.buffer,
                runner=self._training_runner(seed),
                groups_in_flight=config.groups_in_flight,
                lease_s=config.rollout.lease_s,
                episode_timeout_s=config.rollout.episode_timeout_s,
                limit=self._groups_limit(),
                renew_every_s=0.0
                if config.buffer.recycle
                else min(config.rollout.lease_s / 3, RESTART_LOOK_S),
            )

    def _client(self, url: str, token: str | None = None) -> EngineClient:
        # A turn may take as long as its episode.
        rollout = self.config.rollout
        return EngineClient(
            url,
            token or self._credentials.bearer("engine"),
            rollout.episode_timeout_s,
            batch_delay_s=rollout.batch_delay_s,
            vocab_size=self._vocab_size,
        )

    def _groups_limit(self) -> Callable[[], int]:
        """Return what says how many groups may run now: what the engines have room for, and players can play."""
        room = Concurrency(self.router.loads, self.config.groups_in_flight).limit
        if (players := self.players) is None:
            return room

        def limit() -> int:
            running = [] if self.loop is None else [lease.task.id for lease in self.loop.running.values()]
            return players.limit(room(), running)

        return limit

    def _policies(self, addresses: Mapping[str, PolicyAddresses]) -> dict[str, _PolicyClients]:
        """Return the further policies. Raises `ConfigError` unless the recipe's are all there."""
        if set(addresses) != set(self.config.policies):
            raise ConfigError(
                f"the recipe's policies are {sorted(self.config.policies)}, given were {sorted(addresses)}"
            )
        return {
            name: _PolicyClients(
                EngineRouter([self._client(url) for url in where.engines]),
                BufferClient(where.buffer, self._credentials.bearer("buffer")) if where.buffer else None,
            )
            for name, where in addresses.items()
        }

    def _further_policies(self) -> list[FurtherPolicy]:
        """Return the further policies as episodes see them."""
        wait_s = self.config.outage_timeout_s
        return [
            FurtherPolicy(
                name,
                frozenset(self.config.policies[name].agents),
                RetryingGenerator(policy.router, wait_s),
                policy.buffer,
            )
            for name, policy in self.policies.items()
        ]

    def _player(self, generator: Generator, temperature: float, seed: int | None) -> EpisodePlayer:
        """Return a player with the recipe's limits that samples from `generator`, where the worker itself plays."""
        if self.players is not None:
            return self.players.player(temperature, seed)
        settings = episode_settings(self.config, temperature, seed)
        return ChatPlayer(generator, self.envs, self.renderer, self.format.parse, settings, self.ends)

    def _training_runner(self, seed: int | None) -> GroupRunner:
        """Return the runner of leased groups, with the recipe's strategies."""
        engines = training_generator(self.config, self.renderer, self.engines)

        def make_player(temperature: float) -> EpisodePlayer:
            return self._player(engines, temperature, seed if temperature else None)

        parts = WorkerParts(
            self.config,
            engines,
            self.renderer.assistant,
            make_player,
            self._further_policies(),
            self.players is not None,
            self.rewards,
        )
        return EpisodeGroupRunner(make_player(self.config.rollout.temperature), configured(parts))

    async def follow_members(self) -> None:
        """Use engines and environments that join the job or have moved, and no longer those that leave it. Runs until
        cancelled."""
        assert self.buffer is not None
        while True:
            await self._follow(MAIN_POLICY, self.buffer, self.router)
            for name, policy in self.policies.items():
                if policy.buffer is not None:
                    await self._follow(name, policy.buffer, policy.router)
            await asyncio.sleep(MEMBERS_EVERY_S)

    async def _follow(self, name: str, buffer: BufferClient, router: EngineRouter) -> None:
        """Update the members of a policy's job once."""
        try:
            job = await buffer.job()
        except AsyncRLError:
            # The buffer is away, or its job has not been described (yet): nothing is known to have changed.
            job = None
        engines, envs = self._addresses[name]
        await self._move(router, engines, job)
        if not isinstance(self.envs, EnvClient):
            return
        new, gone = envs.update(job)
        for url in new:
            self.envs.join(url, envs.token(url))
        for url in gone:
            self.envs.leave(url)

    async def _move(self, router: EngineRouter, addresses: Addresses, job: dict[str, Any] | None) -> None:
        """Have a router use new addresses and no longer use those that are gone, or only to their requests' ends where
        the job has retired them."""
        new, gone = addresses.update(job)
        for url in new:
            router.join(self._client(url, addresses.token(url)))
        for url in gone:
            if job is not None and url in job.get("retired", ()):
                router.retire(url)
            else:
                await router.leave(url)

    async def run_tasks(
        self, tasks: Sequence[Task], samples: int, temperature: float, seed: int | None
    ) -> list[bytes]:
        """Run `samples` episodes of each task at once; return encoded groups in task order."""
        generator = evaluation_generator(
            self.config, self.renderer, MultiPolicyGenerator(self.engines, self._further_policies())
        )
        runner = EpisodeGroupRunner(self._player(generator, temperature, seed))
        limit = asyncio.Semaphore(
            max(1, self.config.engine.max_num_seqs * len(self.router.engines) // samples)
        )

        async def one(task: Task) -> bytes:
            lease = Lease(uuid.uuid4().hex, task, 0, 0, samples, 1, 0.0)
            async with limit:
                return encode_group(
                    await runner.run_group(lease, self.name, self.config.rollout.episode_timeout_s)
                )

        return await together(one(task) for task in tasks)

    async def start(self) -> None:
        if self.players is not None:
            await self.players.start()

    async def close(self) -> None:
        if self.players is not None:
            await self.players.close()
        await to_their_ends([self.router.close(), self.envs.close()])
        for policy in self.policies.values():
            await policy.router.close()
            if policy.buffer is not None:
                await policy.buffer.close()
        for end in self.ends:
            await end.close()
        for reward in self.rewards:
            await reward.close()
        if self.buffer is not None:
            await self.buffer.close()

    async def run(self) -> None:
        """Lease and play until drained; then wait to be ended."""
        assert self.loop is not None
        for policy in self.policies.values():
            if policy.buffer is not None:
                await policy.buffer.reclaim(self.name)
        await self.loop.run()
        await asyncio.Event().wait()

    def status(self) -> dict[str, Any]:
        """Return what `/v1/status` shows."""
        engine_busy_s = self.router.busy_s
        routers = (self.router, *(policy.router for policy in self.policies.values()))
        troubles = [trouble for router in routers for trouble in router.troubles()]
        if self.loop is None:
            return {
                "name": self.name,
                "mode": "on request",
                "engine_busy_s": engine_busy_s,
                "engine_troubles": troubles,
            }
        counters = dataclasses.asdict(self.loop.counters)
        counters["episodes"] = {str(k): v for k, v in self.loop.counters.episodes.items()}
        return {
            "name": self.name,
            "mode": "draining" if self.loop.draining else "leasing",
            "cpu_s": time.process_time(),
            "refused": self.loop.refused,
            "running": [lease.task.id for lease in self.loop.running.values()],
            "groups_limit": self.loop.limit(),
            "engine_busy_s": engine_busy_s,
            **({"sessions": len(self.envs.host.sessions)} if isinstance(self.envs, LocalEnvs) else {}),
            "engine_troubles": troubles,
            "engine_requests_in_flight": sum(e.in_flight for e in self.router.engines),
            **counters,
        }


class _RoutedEngines:
    """Generates as the worker does for its own episodes, and passes hints to the router."""

    def __init__(self, router: EngineRouter, generator: Generator) -> None:
        self.router = router
        self.generator = generator

    async def generate(self, request: GenerateRequest) -> Generated:
        return await self.generator.generate(request)

    async def context_limit(self) -> int:
        return await self.router.context_limit()

    def hold(self, session: str, num_tokens: int, ttl_s: float) -> None:
        self.router.hold(session, num_tokens, ttl_s)


class WorkerMetrics:
    """Exports the loop's counters to Prometheus."""

    def __init__(self, service: RolloutService) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        status = self.service.status()
        for name in _COUNTERS:
            yield CounterMetricFamily(
                f"asyncrl_rollout_{name}", f"{name} of this worker", value=status.get(name, 0)
            )
        episodes = CounterMetricFamily("asyncrl_rollout_episodes", "episodes by outcome", labels=["outcome"])
        for outcome, count in status.get("episodes", {}).items():
            episodes.add_metric([outcome], count)
        yield episodes
        yield GaugeMetricFamily(
            "asyncrl_rollout_running_groups", "leases held", value=len(status.get("running", ()))
        )
        yield GaugeMetricFamily(
            "asyncrl_rollout_groups_limit",
            "groups that may run at once, by the free cache of the engines",
            value=status.get("groups_limit", 0),
        )


def create_rollout_app(service: RolloutService, access: Access) -> FastAPI:
    """Return the HTTP app; the lease loop runs as long as it does, and ends the process if it fails."""

    @asynccontextmanager
    async def clients() -> AsyncIterator[None]:
        await service.start()
        yield
        await service.close()

    background: dict[str, Background] = {}
    if service.loop is not None:
        background = {"lease loop": service.run, "members": service.follow_members}
    app = create_app(
        "asyncrl rollout worker", access, {}, MAX_BODY_BYTES, background=background, lifespan=clients
    )
    add_metrics(app, WorkerMetrics(service))

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return service.status()

    @app.post("/v1/drain")
    async def drain() -> dict[str, bool]:
        """Take no further leases. What is being played is finished and put."""
        if service.loop is None:
            raise InputError("a worker without a buffer has nothing to drain")
        service.loop.drain()
        return {"draining": True}

    @app.post("/v1/rollouts")
    async def rollouts(request: Request) -> Response:
        body = unpack(await request.body())
        groups = await service.run_tasks(**parse_rollouts(body))
        return Response(pack({"groups": groups}), media_type="application/msgpack")

    return app


def parse_rollouts(body: Any) -> dict[str, Any]:
    """Check the body of `POST /v1/rollouts`: {tasks, samples, temperature, seed}. Raises `InputError`."""
    if not isinstance(body, dict) or not isinstance(body.get("tasks"), list):
        raise InputError("body: must be a map with a list `tasks`")
    unknown = [key for key in body if key not in ("tasks", "samples", "temperature", "seed")]
    if unknown:
        raise InputError(f"{unknown[0]!s:.64}: unknown key; allowed: tasks, samples, temperature, seed")
    samples, temperature, seed = body.get("samples", 1), body.get("temperature", 1.0), body.get("seed")
    if not 0 < len(body["tasks"]) <= MAX_TASKS_PER_CALL:
        raise InputError(f"tasks: must hold 1 to {MAX_TASKS_PER_CALL} tasks, got {len(body['tasks'])}")
    if type(samples) is not int or not 1 <= samples <= 1024:
        raise InputError(f"samples: must be an integer from 1 to 1024, got {samples!r:.64}")
    if type(temperature) not in (int, float) or not 0 <= temperature <= 100:
        raise InputError(f"temperature: must be from 0 to 100, got {temperature!r:.64}")
    if seed is not None and type(seed) is not int:
        raise InputError(f"seed: must be an integer or nil, got {seed!r:.64}")
    return {
        "tasks": [task_from_map(task) for task in body["tasks"]],
        "samples": samples,
        "temperature": float(temperature),
        "seed": seed,
    }


def serve_rollout(
    config: Config,
    model: str,
    engines: Sequence[str],
    envs: Sequence[str],
    buffer: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
    name: str = "",
    policies: Mapping[str, PolicyAddresses] | None = None,
    beside: Mapping[str, str] | None = None,
) -> None:
    """Run a rollout worker until it is told to stop."""
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    credentials = credentials or own_credentials()
    service = RolloutService(config, model, engines, envs, buffer, credentials, name, policies, beside)
    start_tracing("rollout")
    try:
        serve(
            create_rollout_app(service, credentials.access("rollout")),
            host=host,
            port=port,
            ready_file=ready_file,
            advertise=advertise,
        )
    finally:
        stop_tracing()
