"""Publishing a version to every engine as a transaction: prepare on all, then commit on each.

A version counts once every serving engine has committed it. An engine that fails a phase is quarantined: it
gets no commit of later versions until it has caught up with the newest one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from asyncrl.errors import AsyncRLError, UnavailableError
from asyncrl.weights.files import WeightFile, remove_older, write_weights

log = logging.getLogger("asyncrl.weights")


class EngineControl(Protocol):
    """The part of an engine a publisher uses."""

    url: str

    async def request(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0
    ) -> dict[str, Any]: ...


@dataclass(slots=True)
class PublishReport:
    """What one publish cost, in seconds."""

    version: int
    num_bytes: int = 0
    write_s: float = 0.0
    prepare_s: float = 0.0
    pause_s: list[float] = field(default_factory=list)
    """How long each engine stood still."""
    failed: dict[str, str] = field(default_factory=dict)
    """Engine to reason."""


class FilePublisher:
    """Writes weight files to a shared directory and commits them on engines."""

    def __init__(
        self, directory: str | Path, engines: Sequence[EngineControl], phase_timeout_s: float = 60.0
    ) -> None:
        self.directory = Path(directory)
        self.engines = list(engines)
        self.phase_timeout_s = phase_timeout_s
        self.newest: WeightFile | None = None
        self.quarantined: dict[str, str] = {}

    def write(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> WeightFile:
        """Write the weights of `version`; the previous file stays until the next write."""
        self.newest = write_weights(self.directory, version, tensors)
        remove_older(self.directory, version - 1)
        return self.newest

    async def publish(self, file: WeightFile) -> PublishReport:
        """Prepare and commit `file` on every engine.

        Raises `UnavailableError` when no engine took it; otherwise failing engines are quarantined.
        """
        report = PublishReport(file.version, file.num_bytes)
        start = time.perf_counter()
        prepared = await self._on_each(self.engines, "weights/prepare", file, report)
        report.prepare_s = time.perf_counter() - start
        committed = await self._on_each(prepared, "weights/commit", file, report)
        if not committed:
            reasons = "; ".join(f"{url}: {why}" for url, why in report.failed.items())
            raise UnavailableError(f"version {file.version} was committed by no engine: {reasons}")
        for engine in committed:
            self.quarantined.pop(engine.url, None)
        self.quarantined.update(report.failed)
        return report

    async def _on_each(
        self, engines: Sequence[EngineControl], path: str, file: WeightFile, report: PublishReport
    ) -> list[EngineControl]:
        calls = [engine.request(path, file.to_json(), self.phase_timeout_s) for engine in engines]
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
