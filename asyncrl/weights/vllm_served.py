"""What an engine serves of one policy: its weights, how new ones are loaded, and how missed ones are caught up with.

An engine serves the policy of its run, and beside it the adapters of further policies over the same base model. Each
has its own version and its own folder of weights, and commits to one do not affect the others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config_sections import LoraConfig
from asyncrl.credentials import authorization, bearer
from asyncrl.errors import InputError, UnavailableError
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.delta import apply_delta
from asyncrl.weights.fetches import Fetches
from asyncrl.weights.files import WeightFile, verify_weights
from asyncrl.weights.folders import policy_weights
from asyncrl.weights.members import read_members
from asyncrl.weights.offered import Offered
from asyncrl.weights.position import Position
from asyncrl.weights.reads import Reads
from asyncrl.weights.staging import Staging
from asyncrl.weights.vllm_adapters import Adapters
from asyncrl.weights.vllm_images import VISION
from asyncrl.weights.vllm_plugin import WEIGHTS_DIR
from asyncrl.weights.vllm_prefixes import FORGET
from asyncrl.weights.vllm_sampled import KEEP_SAMPLED, RENEW_SAMPLED, SAMPLED
from asyncrl.weights.vllm_transfers import Transfers

if TYPE_CHECKING:
    from vllm.v1.engine import PauseMode
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger("asyncrl.weights")


def base_version() -> int:
    """Version of the weights the server started with."""
    return int(os.environ.get("ASYNCRL_BASE_VERSION", "0"))


def parse_version(label: str) -> int:
    """Turn vLLM's version label into ours; it is "default" until the first update."""
    return base_version() if label == "default" else int(label)


def served_from_environment() -> dict[str, Served]:
    """Return what this server serves by policy, as `services.engine` has configured it; the run's own is ""."""
    folder, lora = os.environ.get(WEIGHTS_DIR, ""), os.environ.get("ASYNCRL_LORA", "")
    committing, ids = asyncio.Lock(), itertools.count(1)
    own = LoraConfig.model_validate_json(lora) if lora else None
    served = {"": Served("", folder, own, committing, ids)}
    for name, settings in json.loads(os.environ.get("ASYNCRL_POLICIES") or "{}").items():
        adapters = LoraConfig.model_validate(settings)
        served[name] = Served(name, policy_weights(folder, name), adapters, committing, ids)
    return served


class Served:
    """One policy of an engine.

    folder: its folder of weights; empty for an engine of no run. lora: its adapter; None if all weights are trained.
    committing: held while the engine loads anything. ids: numbers for adapters, unique in the engine.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        lora: LoraConfig | None,
        committing: asyncio.Lock,
        ids: Iterator[int],
    ) -> None:
        self.name = name
        self.folder = folder
        self.committing = committing
        self.position = Position(folder, base_version())
        self._attempt: asyncio.Future[None] | None = None
        """The newest attempt to catch up."""
        self.staging = Staging(folder)
        self.prepared: WeightFile | None = None
        """What was verified last, as it is on this machine."""
        self.transfers = Transfers(self.staging)
        self.fetches = Fetches(self.staging, authorization(bearer(None, "weights")))
        self.reads = Reads(self.staging)
        self.adapters = None if lora is None else Adapters(lora, folder, base_version(), ids)
        self._interrupted: asyncio.Task[None] | None = None
        """What ends an interruption that no new weights end."""
        self._interrupted_s = 0.0
        """When that interruption began, of `time.perf_counter`."""

    def offered(self, epoch: int, version: int, kind: str) -> Offered | None:
        """Return what other engines may fetch from this one of a version; None of one it neither has nor fetches."""
        if (found := self.fetches.find(epoch, version, kind)) is not None:
            return found
        for file in (self.prepared, self.position.file):
            if file is not None and kind == WHOLE and (file.epoch, file.version) == (epoch, version):
                return Offered(Path(file.path)) if Path(file.path).is_file() else None
        return None

    def own(self, request_id: str) -> str:
        """Return the engine's id for a request, distinct from those of other policies' requests."""
        return f"{self.name}/{request_id}" if self.name else request_id

    async def prepare(self, engine: AsyncLLM, file: WeightFile) -> float:
        """Verify weights, those that were received before those in the file, and have the engine's other machines get
        them; return the seconds it took.

        Raises `InputError`, `UnavailableError`.
        """
        await asyncio.to_thread(self._make_from_delta, file)
        if (received := self.staging.local(file)) is not None:
            try:
                return await self._verify(engine, received)
            except InputError as error:
                log.error("%s; reading the file instead", error)
                self.staging.drop(file)
        return await self._verify(engine, self.own_file(file))

    async def _verify(self, engine: AsyncLLM, file: WeightFile) -> float:
        """Verify weights on all machines of the engine."""
        took_s = await asyncio.to_thread(verify_weights, file)
        self.prepared = file
        await self.transfers.copy_to_machines(engine, file)
        return took_s

    def _make_from_delta(self, file: WeightFile) -> None:
        """Make a copy of new weights from those that are loaded, if there is a delta for these and no copy yet."""
        base, received = self.position.file, self.staging.delta_path(file)
        there = received.is_file() or self.staging.local(file) is None
        if file.delta is None or base is None or base.checksum != file.delta.base_checksum or not there:
            return
        try:
            delta = str(received) if received.is_file() else self._below_folder(file.delta.path)
            apply_delta(base.path, delta, self.staging.make_room(file))
            received.unlink(missing_ok=True)
        except (InputError, OSError) as error:
            log.warning("no use of the delta of version %d: %s", file.version, error)
            self.staging.drop(file)

    def own_file(self, file: WeightFile) -> WeightFile:
        """Return a weight file that lies below this policy's folder of weights. Raises `InputError` for any other."""
        self._below_folder(file.path)
        return file

    def _below_folder(self, path: str) -> str:
        if not self.folder:
            raise InputError("this engine was started without --weights-dir and takes no weights")
        if not Path(path).resolve().is_relative_to(Path(self.folder).resolve()):
            raise InputError(f"path: must lie below the folder of weights, {self.folder}")
        return path

    async def newest(self, engine: AsyncLLM) -> int:
        """Return the newest version served."""
        if self.adapters is not None:
            return self.position.version
        return parse_version(await engine.get_weight_version())

    async def check_version(self, engine: AsyncLLM, least: int) -> None:
        """Raise `UnavailableError` if a request needs an engine with newer weights."""
        if least <= self.position.version:
            return
        version = await self.newest(engine)
        if least > version:
            raise UnavailableError(
                f"the engine serves version {version}, the group was admitted at version {least}"
            )

    async def commit(
        self, engine: AsyncLLM, file: WeightFile, mode: PauseMode, keep_kv: bool = False
    ) -> dict[str, Any]:
        """Swap the weights between two decoding steps; return the version and the seconds the engine was busy.

        Running requests freeze and continue with the new ones ("keep"), or finish first ("wait"); an adapter is
        loaded beside those in use. keep_kv: they keep what the old weights computed of their tokens, instead of having
        it computed again.
        Raises `InputError`, `ConflictError`.
        """
        async with self.committing:
            if self.position.repeats(file):
                return {"version": file.version, "pause_s": 0.0}
            report = await self._load(engine, self.staging.local(file) or self.own_file(file), mode, keep_kv)
            await self.transfers.keep_only(engine, file)
            return report

    async def interrupt(self, engine: AsyncLLM, mode: PauseMode, limit_s: float) -> dict[str, Any]:
        """Pause generation until new weights are committed, for `limit_s` at most; return the version and all sequences
        in which it has sampled tokens.

        Running requests freeze ("keep") or finish first ("wait"). May be repeated. Raises `InputError`,
        `UnavailableError`.
        """
        if KEEP_SAMPLED not in os.environ:
            raise InputError("this engine keeps no sequences: train.old_policy is not 'interrupt'")
        async with self.committing:
            if self._interrupted is None:
                self._interrupted_s = time.perf_counter()
            self._forget_interruption()
            await _pause(engine, mode, clear_cache=False)
            self._interrupted = asyncio.ensure_future(self._go_on_after(engine, limit_s))
            version, sequences = await engine.engine_core.call_utility_async(SAMPLED)
            return {"version": version, "sequences": sequences}

    def _forget_interruption(self) -> None:
        if self._interrupted is not None:
            self._interrupted.cancel()
        self._interrupted = None

    async def _go_on_after(self, engine: AsyncLLM, limit_s: float) -> None:
        """End an interruption whose trainer may be gone. What is sampled from now on it has not seen."""
        await asyncio.sleep(limit_s)
        async with self.committing:
            self._interrupted = None
            log.warning("no new weights came within %g s of an interruption; generation goes on", limit_s)
            await engine.resume_generation()

    async def catch_up(self, engine: AsyncLLM) -> None:
        """Load the version that the run has committed, once after the start. Raises `UnavailableError`.

        Concurrent callers share one attempt and its result; the next call after a failed attempt starts another.
        """
        try:
            if self.position.missed() is None:
                return
            if self._attempt is None or self._attempt.done():
                self._attempt = asyncio.ensure_future(self._catch_up(engine))
            # A client that disconnects must not cancel what the others wait for.
            await asyncio.shield(self._attempt)
        except InputError as error:
            raise UnavailableError(f"the engine could not catch up yet: {error}") from error

    async def _catch_up(self, engine: AsyncLLM) -> None:
        async with self.committing:
            missed = self.position.missed()
            if missed is None:
                return
            # Tens of gigabytes may take longer than the launcher's health probes wait.
            await self._verify(engine, missed)
            await self._load(engine, missed)
            log.warning("caught up with version %d", missed.version)

    async def _load(
        self, engine: AsyncLLM, file: WeightFile, mode: PauseMode = "keep", keep_kv: bool = False
    ) -> dict[str, Any]:
        if self.adapters is not None:
            members = None if not self.folder else read_members(self.folder)
            for member in members or ():
                await asyncio.to_thread(verify_weights, self.own_file(member))
            busy_s = await self.adapters.load(engine, file, members)
            self.position.moved(file)
            return {"version": file.version, "pause_s": busy_s}
        if keep_kv and os.environ.get(VISION):
            raise InputError(
                "engine.keep_kv: must be false for a vision model: what it made of images is kept, too"
            )
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        start = time.perf_counter() if self._interrupted is None else self._interrupted_s
        await _pause(engine, mode, clear_cache=not keep_kv)
        try:
            if keep_kv:
                await engine.engine_core.call_utility_async(FORGET)
            if KEEP_SAMPLED in os.environ:
                await engine.engine_core.call_utility_async(RENEW_SAMPLED, file.version)
            await engine.start_weight_update()
            where = {"path": file.path, "epoch": file.epoch, "version": file.version}
            request = WeightTransferUpdateRequest(update_info=where)
            await engine.update_weights(request)
            await engine.finish_weight_update(weight_version=str(file.version))
        except Exception:
            # Some tensors may be new and some old: nothing may be sampled from them. The process that watches this
            # one restarts it, and it catches up.
            log.exception("weights of version %d were loaded in part; the engine ends", file.version)
            os._exit(1)
        self.position.moved(file)
        self._forget_interruption()
        await engine.resume_generation()
        return {"version": file.version, "pause_s": time.perf_counter() - start}


async def _pause(engine: AsyncLLM, mode: PauseMode, clear_cache: bool) -> None:
    """Pause generation. Raises `UnavailableError` where vLLM cannot empty its cache; the old weights then go on."""
    try:
        await engine.pause_generation(mode=mode, clear_cache=clear_cache)
    except Exception as error:
        await engine.resume_generation()
        raise UnavailableError(f"the engine cannot be paused now: {error}") from error
