"""Starts the ranks beside rank 0, and notices when one of them ends."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from asyncrl.extensions.tinker.policies import BaseModel
from asyncrl.extensions.tinker.rank_process import RankOptions, load_base, loaded_file
from asyncrl.extensions.tinker.ranks import AGAIN, LostRankError, Ranks
from asyncrl.gpus import found_gpus
from asyncrl.machine import usable_cpus
from asyncrl.process_hooks import set_threads
from asyncrl.process_start import Process, python_module, start_process
from asyncrl.scratch import scratch_folder

POLL_S = 0.2
SEEN_S = 5.0
"""How long after its connections the end of a process may be seen."""


def threads_each(given: int, ranks: int) -> int:
    """Return the CPU threads of each rank: `run.threads`, or with 0 its share of this machine's CPUs; 0, torch's own
    choice, where they compute on GPUs."""
    if given or found_gpus():
        return given
    return max(1, usable_cpus() // ranks)


class RankKeeper:
    """The processes of the ranks from 1 on."""

    def __init__(self, options: RankOptions) -> None:
        self.options = options
        self.processes: dict[int, Process] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start them; end them at the end."""
        try:
            for rank in range(1, self.options.size):
                given = json.dumps(asdict(replace(self.options, rank=rank, server=os.getpid())))
                command = [*python_module("asyncrl.extensions.tinker.rank_process"), given]
                self.processes[rank] = start_process(command, os.environ)
            yield
        finally:
            for process in self.processes.values():
                # They keep nothing.
                process.kill()
                process.wait()

    def join(self, start_timeout_s: float) -> Ranks:
        """Return rank 0's side once all have their models. Raises `LostRankError`."""
        deadline = time.monotonic() + start_timeout_s
        folder = self.options.folder
        while missing := [rank for rank in self.processes if not loaded_file(folder, rank).exists()]:
            if time.monotonic() > deadline:
                raise LostRankError(
                    f"rank {missing[0]} has not loaded the model within {start_timeout_s:g} s (run.start_timeout_s)"
                )
            if what := self.ended():
                raise LostRankError(f"{what} at its start; its messages are above")
            time.sleep(POLL_S)
        return Ranks(Path(folder), 0, self.options.size, self.options.timeout_s, self.seen_ended)

    def ended(self) -> str:
        """Return which rank has ended, "" for none."""
        for rank, process in self.processes.items():
            if (code := process.poll()) is not None:
                return f"rank {rank} has ended with exit code {code}"
        return ""

    def seen_ended(self) -> str:
        """Return the same of a rank whose connections may just have closed."""
        deadline = time.monotonic() + SEEN_S
        while not (what := self.ended()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return what

    async def watch(self) -> None:
        """Return never. Raises `LostRankError` when a rank ends."""
        while not (what := self.ended()):
            await asyncio.sleep(POLL_S)
        raise LostRankError(f"{what}; {AGAIN}")


@contextmanager
def loaded_model(
    options: RankOptions, start_timeout_s: float
) -> Iterator[tuple[BaseModel, RankKeeper | None]]:
    """Give the base model, and what watches the further ranks that compute with it; they end at the end.

    options: of rank 0, whose folder is found here. Raises `ConfigError`, `LostRankError`.
    """
    if options.size == 1:
        yield load_base(options), None
        return
    set_threads(options.threads)
    with scratch_folder("ranks") as folder:
        keeper = RankKeeper(replace(options, folder=str(folder)))
        with keeper.running():
            base = load_base(options)
            base.compute = keeper.join(start_timeout_s).compute
            yield base, keeper
