"""Brings new weights to the engines, wherever these are: the publisher behind the trainer's synchronous calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from asyncrl.errors import AsyncRLError
from asyncrl.services.buffer.client import Addresses, BufferClientSync
from asyncrl.services.engine.control import EngineControl
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.weights.files import WeightFile
from asyncrl.weights.publish import FilePublisher, PublishReport

T = TypeVar("T")
FOLLOW_S = 3.0
"""How often the trainer asks where the engines are."""


class SyncFilePublisher:
    """Runs a `FilePublisher` from the trainer's threads: rank 0 writes and commits, every rank gathers.

    make: returns the publisher for the clients of engines. job: see the attribute.
    """

    def __init__(
        self,
        engines: Sequence[str],
        token: str,
        rank: int,
        make: Callable[[Sequence[EngineControl]], FilePublisher],
        job: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="publisher", daemon=True)
        self._thread.start()
        self._token = token
        self._clients = {url: EngineControl(url, token) for url in engines}
        self._addresses = Addresses("engine", engines)
        self.job = job
        """Returns the buffer's description of the job, with where its engines are; None without an answer."""
        self.publisher = make(list(self._clients.values()))
        self.rank = rank
        self._closed = threading.Event()
        self._left: list[EngineControl] = []
        """The clients of engines that are gone; a publish that has begun may still be asking them."""
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
        tensors = self.publisher.host.of(engine.checkpoint(), always=True)
        # Here and not while the next batch is checked with the weights of earlier versions.
        self.publisher.make_room(version)
        return lambda: self._commit(*self._write(version, tensors.items()))

    def ask(self, question: Callable[[FilePublisher], Coroutine[Any, Any, T]]) -> T:
        """Return what is asked of the engines by their publisher, in its thread. On rank 0."""
        self._follow_members()
        return asyncio.run_coroutine_threadsafe(question(self.publisher), self._loop).result()

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
                url: EngineControl(url, self._addresses.token(url) or self._token) for url in new
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
        self.publisher.transport.close()
        await asyncio.gather(*(client.close() for client in (*self._clients.values(), *self._left)))


def described_job(source: BufferClientSync | None) -> dict[str, Any] | None:
    """Return the buffer's description of the job; None if there is none or the buffer does not answer."""
    if source is None:
        return None
    try:
        return source.job()
    except AsyncRLError:
        return None
