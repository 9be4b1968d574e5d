"""Keeps an engine beside the server: starts it, and starts it anew when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.credentials import VARIABLE, Credentials
from asyncrl.endpoint import announced_url
from asyncrl.errors import UnavailableError
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.process_start import Process, python_module, start_process
from asyncrl.services.engine.client import EngineClient

log = logging.getLogger("asyncrl.tinker")
POLL_S = 0.2
MOST_FAILED_STARTS = 3


class EngineKeeper:
    """options: for `engine_process`. folder: where its address is written."""

    def __init__(
        self,
        options: Mapping[str, Any],
        credentials: Credentials,
        folder: Path,
        sampling: Sampling,
        vocab_size: int,
    ) -> None:
        self.options, self.credentials, self.sampling = options, credentials, sampling
        self.ready_file = folder / "engine.json"
        self.vocab_size = vocab_size
        self.starts = 0

    async def run(self) -> None:
        """Keep one running for ever. Raises `UnavailableError` when it cannot be started."""
        failed = 0
        while True:
            self.ready_file.unlink(missing_ok=True)
            process = self._start()
            try:
                failed = 0 if await self._serve(process) else failed + 1
            finally:
                self.sampling.engine = None
                await asyncio.to_thread(_end, process)
            if failed == MOST_FAILED_STARTS:
                raise UnavailableError(
                    f"the engine ended {failed} times while it was being started; the log says why"
                )
            log.error("the engine has ended and is started anew")

    def _start(self) -> Process:
        self.starts += 1
        command = [
            *python_module("asyncrl.extensions.tinker.engine_process"),
            json.dumps(dict(self.options)),
            str(self.ready_file),
        ]
        return start_process(command, {**os.environ, VARIABLE: self.credentials.text})

    async def _serve(self, process: Process) -> bool:
        """Sample by an engine until it ends; return whether it has ever served."""
        while not (url := announced_url(self.ready_file)):
            if process.poll() is not None:
                return False
            await asyncio.sleep(POLL_S)
        client = EngineClient(url, self.credentials.bearer("engine"), vocab_size=self.vocab_size)
        self.sampling.engine = client
        try:
            while process.poll() is None:
                await asyncio.sleep(POLL_S)
        finally:
            # Before its client is closed, by which requests in flight know that they are to wait for the next one.
            self.sampling.engine = None
            await client.close()
        return True


def _end(process: Process) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
