"""Publishing a version to every engine as a transaction: prepare on all, then commit on each.

A version counts once every serving engine has committed it; engines that start later read it from `committed.json`.
An engine that fails a phase is quarantined: it is offered the newest version repeatedly until it has loaded it, and
refuses requests of groups that were admitted at a version it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from asyncrl.errors import AsyncRLError, InputError, UnavailableError
from asyncrl.weights.files import (
    HostCopies,
    WeightFile,
    remove_older,
    verify_weights,
    weights_path,
    write_weights,
)
from asyncrl.weights.members import Members
from asyncrl.weights.position import read_committed, write_committed
from asyncrl.weights.transport import EngineControl, Transport

log = logging.getLogger("asyncrl.weights")


RETRY_S = 1.0
WATCH_S = 2.0
SMALL_SHARE = 0.125
"""Of the free room where weights are published, what versions older than the one before may take."""
SLOWEST_READ_BYTES_PER_S = 200e6
"""An engine that verifies or loads a file more slowly than this, beyond the phase's own limit, has stopped."""


@dataclass(slots=True)
class PublishReport:
    """What one publish cost, in seconds."""

    version: int
    num_bytes: int = 0
    short_bytes: dict[str, int] = field(default_factory=dict)
    """The bytes of its short forms, by their kinds."""
    write_s: float = 0.0
    carry_s: float = 0.0
    """For bringing the file to engines that do not read it where it was written."""
    prepare_s: float = 0.0
    total_s: float = 0.0
    """Until all engines had the version and the buffer had accounted for it."""
    pause_s: list[float] = field(default_factory=list)
    """How long each engine was paused."""
    failed: dict[str, str] = field(default_factory=dict)
    """Engine to reason."""


class FilePublisher:
    """Writes weight files and commits them on engines.

    transport: how the files come to the engines. options: what engines get with each phase beside the file. earlier:
    how many versions before the newest stay in the folder; those before the first of them only while they are small.
    """

    def __init__(
        self,
        directory: str | Path,
        engines: Sequence[EngineControl],
        phase_timeout_s: float = 60.0,
        wait_s: float = 0.0,
        finish_requests: bool = False,
        transport: Transport | None = None,
        options: Mapping[str, Any] | None = None,
        members: Members | None = None,
        turn_s: float = 0.0,
        earlier: int = 1,
    ) -> None:
        self.directory = Path(directory)
        self.earlier = earlier
        self.finish_requests = finish_requests
        """Let running requests finish under the old weights, instead of continuing under the new ones."""
        self.turn_s = turn_s if finish_requests else 0.0
        """How long an engine may take to finish them, before it commits."""
        self.options = {"finish_requests": finish_requests, **(options or {})}
        self.engines = list(engines)
        self.transport = transport or Transport()
        self.members = members
        """Past versions that engines keep beside the newest one; None where they keep none."""
        self._loaded: WeightFile | None = None
        """The newest file that this publisher has committed."""
        self.phase_timeout_s = phase_timeout_s
        self.wait_s = wait_s
        committed = read_committed(self.directory)
        self.epoch = 1 if committed is None else committed.epoch + 1
        self.quarantined: dict[str, str] = {}
        self.host = HostCopies()
        """Where the tensors of a version are copied, one at a time."""
        self._tensors: dict[str, Tensor] = {}
        """Tensors of the version being published, kept to write a damaged file again."""
        self._publishing = False
        self._background: dict[str, asyncio.Task[None]] = {}
        """By engine, what offers it the newest version."""

    def write(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> WeightFile:
        """Write the weights of `version`; the previous file stays until the next write."""
        self._tensors = self.host.of(tensors)
        self.make_room(version)
        file = write_weights(self.directory, version, self._tensors.items(), self.epoch)
        file = self.transport.written(file, self._loaded)
        if self.members is not None:
            self.members.note(file)
        return file

    def make_room(self, version: int) -> None:
        """Remove what nobody needs once `version` is to be written: what is older than the version before it, but for
        members and the small files of `earlier` versions."""
        served = self.members.served if self.members is not None else None
        # An engine that starts now still reads which members go with the version before.
        kept = {*served(version - 1), *served(version)} if served is not None else set[int]()
        remove_older(
            self.directory, version - 1, kept | self._small(range(version - self.earlier, version - 1))
        )

    def _small(self, versions: Iterable[int]) -> set[int]:
        """Return the newest of these whose files together take no more than `SMALL_SHARE` of what is free."""
        try:
            room = SMALL_SHARE * shutil.disk_usage(self.directory).free
        except OSError:
            return set()
        found: set[int] = set()
        for version in sorted(versions, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                room -= weights_path(self.directory, version).stat().st_size
            if room < 0:
                break
            found.add(version)
        return found

    async def publish(self, file: WeightFile) -> PublishReport:
        """Prepare and commit `file` on every engine; engines that fail are quarantined.

        Raises `UnavailableError` if no engine committed it within `wait_s`.
        """
        await self.close()
        self._publishing = True
        try:
            if self._loaded is None:
                file = await self._after_what_is_loaded(file)
            return await self._publish(file)
        finally:
            self._publishing = False

    async def _after_what_is_loaded(self, file: WeightFile) -> WeightFile:
        """Return the file with an epoch after those of the engines.

        The folder's record has theirs, unless what was in shared memory was lost: engines would then refuse a trainer
        that goes back.
        """

        async def epoch(engine: EngineControl) -> int:
            try:
                return int((await engine.request("weights/epoch", {}, self.phase_timeout_s))["epoch"])
            except AsyncRLError:
                # It loads nothing now, or is asked again when it has returned.
                return 0

        found = await asyncio.gather(*(epoch(engine) for engine in self.engines))
        self.epoch = max(self.epoch, max(found, default=0) + 1)
        file = replace(file, epoch=self.epoch)
        if self.members is not None:
            self.members.note(file)
        return file

    async def _publish(self, file: WeightFile) -> PublishReport:
        before = read_committed(self.directory)
        if before is not None and before.version >= file.version:
            # A restarted trainer goes back: from now on no engine may load the versions it has rolled back.
            write_committed(self.directory, file)
        deadline = time.monotonic() + self.wait_s + self.turn_s
        while True:
            report, committed, file = await self._transaction(file)
            if committed:
                break
            reasons = "; ".join(f"{url}: {why}" for url, why in report.failed.items())
            if time.monotonic() >= deadline:
                raise UnavailableError(f"version {file.version} was committed by no engine: {reasons}")
            log.warning("version %d waits for an engine: %s", file.version, reasons)
            await asyncio.sleep(RETRY_S)
        self._tensors = {}
        write_committed(self.directory, replace(file, forms={}))
        self._loaded = file
        self.quarantined = dict(report.failed)
        for engine in self.engines:
            if engine.url in self.quarantined:
                self._in_background(engine, self._rejoin(engine, file))
            elif self.transport.brings:
                self._in_background(engine, self._watch(engine, file))
        return report

    def _in_background(self, engine: EngineControl, work: Coroutine[Any, Any, None]) -> None:
        task = self._background[engine.url] = asyncio.ensure_future(work)

        def ended(task: asyncio.Task[None]) -> None:
            if self._background.get(engine.url) is task:
                del self._background[engine.url]

        task.add_done_callback(ended)

    async def follow(self, engines: Sequence[EngineControl]) -> None:
        """Publish to these engines, also the version that is being published. New ones that do not see the trainer's
        files are offered the newest version at once."""
        known = {engine.url for engine in self.engines}
        self.engines = list(engines)
        await self._end(known - {engine.url for engine in engines})
        if self.transport.brings and self._loaded is not None and not self._publishing:
            for engine in engines:
                if engine.url not in known:
                    self._in_background(engine, self._watch(engine, self._loaded))

    async def close(self) -> None:
        """Stop offering the newest version to quarantined engines, and watching the others."""
        await self._end(list(self._background))

    async def _end(self, urls: Collection[str]) -> None:
        tasks = [self._background.pop(url) for url in urls if url in self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> None:
        """Bring a file to engines. One that does not get it may still find it where it was written."""
        for url, reason in (await self.transport.carry(file, engines)).items():
            log.error("engine %s did not get version %d: %s", url, file.version, reason)

    async def _transaction(self, file: WeightFile) -> tuple[PublishReport, list[EngineControl], WeightFile]:
        """Return the report of one attempt, the engines that committed, and the file they loaded."""
        sizes = {kind: form.num_bytes for kind, form in file.forms.items()}
        report = PublishReport(file.version, file.num_bytes, sizes)
        start, engines = time.perf_counter(), self.engines
        await self._carry(file, engines)
        report.carry_s = time.perf_counter() - start
        start = time.perf_counter()
        prepared = await self._on_each(engines, "weights/prepare", file, report)
        if report.failed and (damage := await asyncio.to_thread(_damage, file)):
            log.error("%s; writing it again", damage)
            file = replace(
                write_weights(self.directory, file.version, self._tensors.items(), self.epoch),
                forms=file.forms,
            )
            report.failed.clear()
            await self._carry(file, engines)
            prepared = await self._on_each(engines, "weights/prepare", file, report)
        report.prepare_s = time.perf_counter() - start
        return report, await self._on_each(prepared, "weights/commit", file, report), file

    def _limit_s(self, file: WeightFile, path: str = "") -> float:
        """How long an engine may take for a phase."""
        turn_s = self.turn_s if path == "weights/commit" else 0.0
        return self.phase_timeout_s + turn_s + file.num_bytes / SLOWEST_READ_BYTES_PER_S

    async def _watch(self, engine: EngineControl, file: WeightFile) -> None:
        """Offer the newest version to an engine that restarts and cannot see it in the trainer's folder."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                loaded = await engine.request("weights/base", file.to_json(), self.phase_timeout_s)
            except AsyncRLError:
                continue
            if loaded["base"] != file.checksum:
                await self._rejoin(engine, file)

    async def _rejoin(self, engine: EngineControl, file: WeightFile) -> None:
        """Offer the newest version to a quarantined engine until it has loaded it."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                try:
                    await engine.request("weights/prepare", file.to_json(), self._limit_s(file))
                except InputError:
                    if not self.transport.brings:
                        raise
                    # It does not see the trainer's files, or could not use a short form.
                    await self._carry(replace(file, forms={}), [engine])
                    await engine.request("weights/prepare", file.to_json(), self._limit_s(file))
                await engine.request("weights/commit", file.to_json(), self._limit_s(file, "weights/commit"))
            except AsyncRLError as error:
                self.quarantined[engine.url] = str(error)
            else:
                self.quarantined.pop(engine.url, None)
                log.warning("engine %s has caught up with version %d", engine.url, file.version)
                return

    async def _on_each(
        self, engines: Sequence[EngineControl], path: str, file: WeightFile, report: PublishReport
    ) -> list[EngineControl]:
        body = file.to_json() | self.options
        calls = [engine.request(path, body, self._limit_s(file, path)) for engine in engines]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        done = []
        for engine, answer in zip(engines, answers, strict=True):
            if isinstance(answer, AsyncRLError):
                log.error("engine %s failed %s of version %d: %s", engine.url, path, file.version, answer)
                report.failed[engine.url] = f"{path}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                done.append(engine)
                if "pause_s" in answer:
                    report.pause_s.append(answer["pause_s"])
        return done


def _damage(file: WeightFile) -> str:
    """Return what is wrong with a file, "" if nothing is."""
    try:
        verify_weights(file)
    except InputError as error:
        return str(error)
    return ""
