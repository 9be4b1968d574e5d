"""The trainer process (one per rank): builds the engine, runs the steps, writes metrics and checkpoints.

Started by `asyncrl train` as `python -m asyncrl serve trainer --folder runs/NAME ...`, under torchrun when
`train.ranks` is above 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.objective import Objective, build_objective
from asyncrl.config import Config, load_config, parse_config
from asyncrl.credentials import Credentials
from asyncrl.data.table import TokenValues, TrajectoryWriter
from asyncrl.endpoint import stalled_file, stop_file, wait_for_addresses
from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.import_path import load_object
from asyncrl.jsonfile import read_json, write_json
from asyncrl.run.checkpoints import KEPT_CHECKPOINTS
from asyncrl.services.buffer.client import Addresses, BufferClientSync
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.sleep import SleepSwitch
from asyncrl.services.old_policy.client import OldPolicyClient
from asyncrl.services.outer.client import OuterClient
from asyncrl.services.trainer.shared_rollouts import open_swarm
from asyncrl.services.trainer.weight_source import HttpWeightSource
from asyncrl.startup import LIMIT_FACTOR
from asyncrl.tracing import start_tracing, stop_tracing
from asyncrl.train.auxiliary_models import AuxiliaryModels
from asyncrl.train.callbacks import Recording, StopFile, TrainerCallback
from asyncrl.train.checkpoint_store import CheckpointStore
from asyncrl.train.checkpointer import Checkpointer
from asyncrl.train.configured import configured
from asyncrl.train.deepspeed_engine import (
    TrainEngine,
    init_distributed,
    leave_distributed,
    wait_for_all_ranks,
)
from asyncrl.train.exploiter import Exploiter, Exploiting
from asyncrl.train.memory_checkpoints import FOLDER as MEMORY_FOLDER
from asyncrl.train.metrics_log import MetricsLog
from asyncrl.train.minimax import Minimax, MinimaxReward
from asyncrl.train.models import load_auxiliary_models, load_minimax, load_trained
from asyncrl.train.old_policy import OldPolicies
from asyncrl.train.old_policy_model import FOLDER
from asyncrl.train.outer_exchange import Outer, OuterExchange
from asyncrl.train.poison import PoisonFolder
from asyncrl.train.progress import Progress
from asyncrl.train.recover import recover
from asyncrl.train.swarm_pool import Swarm
from asyncrl.train.threads import set_threads
from asyncrl.train.trainer import Trainer
from asyncrl.train.turns import MemoryTurns, NoTurns, Turns
from asyncrl.types import Group
from asyncrl.weights.carrier import Carrier, CollectiveCarrier
from asyncrl.weights.files import WeightFile, on_cpu
from asyncrl.weights.http_carrier import HttpCarrier
from asyncrl.weights.members import Members
from asyncrl.weights.nixl_agent import check_nixl
from asyncrl.weights.nixl_carrier import NixlCarrier
from asyncrl.weights.publish import FilePublisher, PublishReport
from asyncrl.weights.sampled import Sequence as SampledSequence

BEAT_S = 1.0
FOLLOW_S = 3.0
"""How often the trainer asks where the engines are."""
OUTER_RUN = "outer.json"
"""File of a run's folder with the id by which an outer optimizer knows the run."""


class SyncFilePublisher:
    """Runs a `FilePublisher` from the trainer's threads: rank 0 writes and commits, every rank gathers."""

    def __init__(
        self,
        directory: Path,
        engines: Sequence[str],
        token: str,
        rank: int,
        wait_s: float = 0.0,
        job: Callable[[], dict[str, Any] | None] = lambda: None,
        finish_requests: bool = False,
        carrier: Carrier | None = None,
        deltas: bool = False,
        keep_kv: bool = False,
        members: Members | None = None,
        turn_s: float = 0.0,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publisher", daemon=True)
        self._thread.start()
        self._token = token
        self._clients = {url: EngineClient(url, token) for url in engines}
        self._addresses = Addresses("engine", engines)
        self.job = job
        """Returns the buffer's description of the job, with where its engines are; None without an answer."""
        self.publisher = FilePublisher(
            directory, list(self._clients.values()), 60.0, wait_s, finish_requests, carrier, deltas, keep_kv,
            members, turn_s,
        )  # fmt: skip
        self.rank = rank
        self._closed = threading.Event()
        self._left: list[EngineClient] = []
        """Of engines that are gone; a publish that has begun may still be asking them."""
        self._following = threading.Lock()
        self._follower = threading.Thread(target=self._keep_following, name="members", daemon=True)
        if rank == 0:
            self._follower.start()
        self.before_commit: Callable[[], None] = lambda: None
        """Called on every rank when the weights have been read, before engines are asked to load them."""

    def publish(self, version: int, engine: TrainEngine) -> PublishReport:
        """Write and commit one version. Call on every rank."""
        if self.rank != 0:
            for _ in engine.checkpoint():
                pass
            self.before_commit()
            return PublishReport(version)
        file, write_s = self._write(version, engine.checkpoint())
        self.before_commit()
        return self._commit(file, write_s)

    def gather(self, version: int, engine: TrainEngine) -> Callable[[], PublishReport]:
        """Copy one version to host memory; return what writes and commits it, for a thread beside the training.

        Call on every rank; what the others get does nothing.
        """
        if self.rank != 0:
            for _ in engine.checkpoint():
                pass
            return lambda: PublishReport(version)
        tensors = on_cpu(engine.checkpoint(), copy=True)
        # Here and not while the next batch is checked with the weights of earlier versions.
        self.publisher.make_room(version)
        return lambda: self._commit(*self._write(version, tensors.items()))

    def interrupt(self, version: int, limit_s: float) -> list[SampledSequence]:
        """See `FilePublisher.interrupt`. On rank 0."""
        self._follow_members()
        asked = self.publisher.interrupt(version, limit_s)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def _write(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> tuple[WeightFile, float]:
        """Write a file; return it with the seconds that took."""
        start = time.perf_counter()
        self._follow_members()
        file = self.publisher.write(version, tensors)
        return file, time.perf_counter() - start

    def _commit(self, file: WeightFile, write_s: float) -> PublishReport:
        report = asyncio.run_coroutine_threadsafe(self.publisher.publish(file), self._loop).result()
        report.write_s = write_s
        return report

    def _keep_following(self) -> None:
        """Between two versions, too: an engine that has moved needs the newest one before it serves."""
        while not self._closed.wait(FOLLOW_S):
            self._follow_members()

    def _follow_members(self) -> None:
        """Publish to engines where they are: those that have joined the job, too, and no longer to those that left."""
        with self._following:
            new, gone = self._addresses.update(self.job())
            self._left += [self._clients.pop(url) for url in (*gone, *new) if url in self._clients]
            self._clients |= {
                url: EngineClient(url, self._addresses.token(url) or self._token) for url in new
            }
            follow = self.publisher.follow(list(self._clients.values()))
            asyncio.run_coroutine_threadsafe(follow, self._loop).result()

    def close(self) -> None:
        """Close connections and end the thread."""
        self._closed.set()
        if self.rank == 0:
            self._follower.join()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _close(self) -> None:
        await self.publisher.close()
        if self.publisher.carrier is not None:
            self.publisher.carrier.close()
        await asyncio.gather(*(client.close() for client in (*self._clients.values(), *self._left)))


def described_job(source: BufferClientSync | None) -> dict[str, Any] | None:
    """Return the buffer's description of the job; None if there is none or the buffer does not answer."""
    if source is None:
        return None
    try:
        return source.job()
    except AsyncRLError:
        return None


def open_publisher(
    config: Config,
    engine: TrainEngine,
    engines: Sequence[str],
    weights_dir: Path,
    credentials: Credentials,
    folder: Path,
    source: BufferClientSync | None = None,
    exploiter: Exploiter | None = None,
) -> SyncFilePublisher:
    """Return the run's publisher, with what `engine.weight_transfer` names to bring the files to the engines."""
    return SyncFilePublisher(
        weights_dir, engines, credentials.bearer("engine"), engine.rank, config.outage_timeout_s,
        lambda: described_job(source), config.train.schedule == "asynchronous",
        open_carrier(config, engine, credentials) if engine.rank == 0 else None, config.engine.weight_delta,
        config.engine.keep_kv, open_members(config, folder, weights_dir, exploiter),
        # No turn lasts longer than its episode may.
        config.rollout.episode_timeout_s,
    )  # fmt: skip


def open_members(
    config: Config, folder: Path, weights_dir: Path, exploiter: Exploiter | None = None
) -> Members | None:
    """Return the run's past versions that engines keep as opponents; None where the policy plays all agents."""
    if exploiter is not None:
        return Members(weights_dir, folder / "opponents", exploiter.served)
    population = config.population
    if population is None:
        return None
    served = partial(population.served, max_staleness=config.buffer.max_staleness)
    return Members(weights_dir, folder / "opponents", served)


def open_carrier(config: Config, engine: TrainEngine, credentials: Credentials) -> Carrier | None:
    """Return what brings files to engines; None where they read them in a folder that both sides see.

    Raises `ConfigError`.
    """
    match config.engine.weight_transfer:
        case "collective":
            return CollectiveCarrier(torch.device(engine.device))
        case "http":
            return HttpCarrier(HttpWeightSource(credentials))
        case "nixl":
            check_nixl()
            return NixlCarrier()
        case "shared_file":
            return None
        case own:
            return own_carrier(own, config, torch.device(engine.device))


def own_carrier(path: str, config: Config, device: torch.device) -> Carrier:
    """Return a carrier of the user's own, made with the run's configuration and the device of the trainer's first rank.

    Raises `ConfigError` where the import path names none.
    """
    carrier: Carrier = load_object("engine.weight_transfer", path)(config, device)
    missing = [name for name in ("carry", "close") if not callable(getattr(carrier, name, None))]
    if missing:
        raise ConfigError(
            f"engine.weight_transfer: {path!r} is no asyncrl.weights.carrier.Carrier: it has no {missing[0]!r}"
        )
    return carrier


def open_old_policies(
    config: Config, weights_dir: Path, address: str, credentials: Credentials
) -> OldPolicies:
    """Return the trainer's side of the old-policy process. Raises `DeadlineError` without its address in time."""
    (url,) = wait_for_addresses([address], LIMIT_FACTOR * config.run.start_timeout_s)
    token = credentials.bearer("old_policy")
    client = OldPolicyClient(url, token, config.buffer.wait_timeout_s, config.outage_timeout_s)
    return OldPolicies(weights_dir / FOLDER, config.buffer.max_staleness, client)


def open_exchange(config: Config, folder: Path, credentials: Credentials, first: bool) -> OuterExchange:
    """Return what the run does with others that train the same policy."""
    if not first:
        return OuterExchange(config, None)
    known = read_json(folder / OUTER_RUN)
    if known is None:
        known = {"run": uuid.uuid4().hex}
        write_json(folder / OUTER_RUN, known)
    return OuterExchange(
        config, OuterClient(config.outer, credentials.bearer("outer"), known["run"], folder.name)
    )


def open_minimax(
    config: Config, objective: Objective, engine: TrainEngine, folder: Path, model: str
) -> MinimaxReward | None:
    """Return what rewards the turns of an exploiter, whose run folder it is; None where the game does. A collective."""
    # Other ranks may be on machines that have no folder of the main policy.
    run, name = folder.parent.parent, folder.name
    found = engine.on_first(lambda: [name, load_config(run / "config.json").model_dump(mode="json")])
    main = parse_config(found[1], "the main policy's configuration", strict=False)
    if not main.policies[found[0]].minimax:
        return None
    return load_minimax(config, objective, main, run / "checkpoints", model)


def open_callbacks(
    config: Config, folder: Path, model: str, credentials: Credentials, first: bool
) -> list[TrainerCallback]:
    """Return those of the run's folder, and those that need other processes."""
    found: list[TrainerCallback] = [PoisonFolder(folder / "poison", config, model)]
    if config.outer.url:
        found.append(Outer(open_exchange(config, folder, credentials, first)))
    if first and (pool := open_swarm(config, folder, model, credentials)) is not None:
        found.append(Swarm(pool))
    if first:
        found.append(StopFile(stop_file(folder)))
    return found


class Recorder:
    """Writes each step's metrics and trajectories into the run folder."""

    def __init__(self, folder: Path, sinks: Sequence[str]) -> None:
        self.metrics = MetricsLog(folder, "tensorboard" in sinks)
        self.trajectories = TrajectoryWriter(folder / "trajectories")

    def on_commit(self, version: int, groups: Sequence[Group], values: TokenValues) -> None:
        self.trajectories.put(version, groups, values)

    def on_step(self, version: int, metrics: dict[str, Any]) -> None:
        self.metrics.write(version, metrics)

    def close(self) -> None:
        self.metrics.close()
        self.trajectories.close()


def make_checkpointer(
    folder: Path,
    config: Config,
    engine: TrainEngine,
    auxiliary: AuxiliaryModels,
    model: str,
    recorder: Recorder | None,
    memory: Path | None = None,
    machines: int = 1,
) -> Checkpointer:
    """Return the run's checkpointer; a separate critic's optimizer goes into the same checkpoint.

    memory: the folder of those in memory, if there are to be any. machines: over which the ranks are spread.

    A checkpoint is complete only when the trajectories of its steps are written, since a resumed run does not repeat
    those steps.
    """
    return Checkpointer(
        folder / "checkpoints",
        engine,
        model,
        every=config.train.checkpoint_every,
        keep=KEPT_CHECKPOINTS,
        also_every=config.eval.every,
        others=auxiliary.trained_engines,
        before_complete=recorder.trajectories.flush if recorder is not None else lambda: None,
        store=CheckpointStore(config.train.checkpoint_store)
        if config.train.checkpoint_store and engine.rank == 0
        else None,
        memory=memory,
        memory_every=config.train.memory_checkpoint_every,
        machines=machines,
    )


class Heartbeat:
    """Touches a file every second, so that the launcher can tell a suspended process from a working one.

    Once it watches the main thread, it stops when that does not get on, and leaves in the log where it hangs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self._limit_s = float("inf")
        path.touch()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            if self._progress is not None and self._progress.silent_s > self._limit_s:
                print(
                    f"asyncrl: the trainer hangs: no progress within {self._limit_s:g} s, which follows from "
                    "train.stall_timeout_s; its threads are",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(file=sys.stderr)
                with contextlib.suppress(OSError):
                    stalled_file(self._path).touch()
                return
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def watch(self, progress: Progress, limit_s: float) -> None:
        """Stop when there is no progress for `limit_s`."""
        progress.mark()
        self._limit_s, self._progress = limit_s, progress

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)


def _engines_asleep(config: Config, engines: Sequence[str], credentials: Credentials) -> SleepSwitch | None:
    """Put engines that use the trainer's memory to sleep before any rank loads a model, and return what wakes them.

    None where there are none.
    """
    if config.placement.sleep is not True:
        return None
    urls = wait_for_addresses(engines, LIMIT_FACTOR * config.run.start_timeout_s)
    switch = SleepSwitch(urls, credentials.bearer("engine"), config.outage_timeout_s)
    if init_distributed(config.rank_timeout_s) == 0:
        switch(True)
    wait_for_all_ranks()
    return switch


def run_trainer(
    folder: Path,
    model: str,
    buffer: str,
    engines: Sequence[str],
    weights_dir: Path,
    credentials: Credentials,
    old_policy: str = "",
    main_buffer: str = "",
    exploits: int = 0,
    machines: int = 1,
) -> int:
    """Train one run to its end; return 0. Every rank calls this.

    engines: addresses, or one "@FILE" that will hold them, so that the model can be loaded meanwhile. Raises
    `DeadlineError` if the file is not written in time. old_policy: such a file for the old-policy process, if any.
    main_buffer, exploits: of an exploiter, the buffer of the policy that it is trained against, and its limit of
    versions.
    """
    config = load_config(folder / "config.json")
    heartbeat = Heartbeat(folder / "endpoints" / f"trainer-{os.environ.get('RANK', '0')}.beat")
    set_threads(config.run.threads)
    objective = build_objective(config.algo)
    init_distributed(config.rank_timeout_s)
    switch = _engines_asleep(config, engines, credentials)
    engine = TrainEngine(load_trained(config, objective, model), config.train, config.model.dtype)
    old_policies = open_old_policies(config, weights_dir, old_policy, credentials) if old_policy else None
    auxiliary = load_auxiliary_models(config, objective, engine, model, old_policies)
    minimax = open_minimax(config, objective, engine, folder, model) if exploits else None
    critic = auxiliary.critic.engine if auxiliary.critic is not None else None
    trained = [engine, *([critic] if critic is not None else [])]
    for one in trained:
        one.progress = engine.progress
    turns: Turns = MemoryTurns(trained, switch) if switch is not None else NoTurns()
    first = engine.rank == 0
    if first:
        start_tracing("trainer")
    recorder = Recorder(folder, config.run.sinks) if first else None
    bearer = credentials.bearer("buffer")
    source = BufferClientSync(buffer, bearer, config.buffer_outage_s) if first else None
    urls = wait_for_addresses(engines, LIMIT_FACTOR * config.run.start_timeout_s) if first else []
    exploiter = Exploiter(exploits, config.opponents.size) if exploits else None
    main = BufferClientSync(main_buffer, bearer, config.buffer_outage_s) if first and exploits else None
    publisher = open_publisher(config, engine, urls, weights_dir, credentials, folder, source, exploiter)
    memory = weights_dir / MEMORY_FOLDER if config.train.memory_checkpoint_every else None
    checkpointer = make_checkpointer(folder, config, engine, auxiliary, model, recorder, memory, machines)
    publisher.before_commit = turns.to_others
    callbacks: list[TrainerCallback] = [
        *(
            [Exploiting(exploiter, main.join_opponents if main else lambda _: None, first)]
            if exploiter
            else []
        ),
        *configured(config, objective, first),
        *open_callbacks(config, folder, model, credentials, first),
        *([Minimax(minimax)] if minimax is not None else []),
        *([Recording(recorder.on_step, recorder.on_commit)] if recorder is not None else []),
    ]
    trainer = Trainer(
        config, engine, objective, auxiliary, source, publisher, checkpointer, callbacks, weights_dir, turns
    )
    if engine.num_ranks != (wanted := config.train.ranks_each * machines):
        raise RuntimeError(f"there are {engine.num_ranks} ranks, and {wanted} were started")
    start = time.monotonic()
    prefixes = "computed once" if engine.shares_prefixes else "not shared (this model does not support it)"
    print(
        f"trainer: rank {engine.rank} of {engine.num_ranks} is ready; common prefixes are {prefixes}",
        flush=True,
    )
    (folder / "endpoints" / f"trainer-{engine.rank}.ready").touch()
    heartbeat.watch(engine.progress, config.rank_timeout_s)
    turns.to_trainer()
    version = trainer.run(recover(trainer, checkpointer, source, publisher))
    wall_s = time.monotonic() - start
    if version or not trainer.stopped:
        turns.to_trainer()
        checkpointer.finish(version, trainer.state_dict())
    turns.to_others()
    for callback in callbacks:
        callback.close()
    if first and recorder is not None:
        recorder.close()
    if first and not trainer.stopped:
        totals = trainer.totals.to_dict() | {"version": version, "wall_s": wall_s}
        (folder / "trainer.json").write_text(json.dumps(totals))
    publisher.close()
    stop_tracing()
    if source is not None:
        source.close()
    leave_distributed()
    heartbeat.close()
    return 0
