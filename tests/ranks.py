"""Two ranks that serve all tests of a process, since starting them takes longer than what they do.

    python -m tests.ranks FOLDER

They are forked where the processes of runs are, and get what torchrun would tell them.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from asyncrl import process_start
from asyncrl.jsonfile import write_json
from asyncrl.process_hooks import die_with_parent
from asyncrl.process_start import Process, start_process
from tests.app_thread import free_port

LOOK_EVERY_S = 0.02
CALL_S = 500.0
END_S = 60.0


class TwoRanks:
    """Started by the first call. `folder` takes the calls and the ranks' output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks: list[Process] = []
        self.calls = itertools.count(1)

    def call(self, module: str, *args: str) -> None:
        """Run `module.main(*args)` on both ranks to its end; where one fails, so does this."""
        if not self.ranks:
            self._start()
        number = next(self.calls)
        write_json(self.folder / f"{number}.json", [module, *args])
        deadline = time.monotonic() + CALL_S
        while not (self.folder / f"{number}.done").exists():
            if any(rank.poll() is not None for rank in self.ranks) or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"{module} on two ranks:\n{self._log().read_text()[-3000:]}")
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        (self.folder / "end").touch()
        try:
            # One that waits for another that has failed does not see the end.
            if all(rank.poll() is None for rank in self.ranks):
                for rank in self.ranks:
                    rank.wait(END_S)
        finally:
            for rank in self.ranks:
                rank.kill()
            self.ranks = []

    def _start(self) -> None:
        self.folder = self.folder / str(next(self.calls))
        self.folder.mkdir(parents=True)
        self.calls = itertools.count(1)
        group = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        command = [sys.executable, "-m", "tests.ranks", str(self.folder)]
        with open(self._log(), "ab") as log, patch.object(process_start, "FORKED", ((),)):
            for rank in ("0", "1"):
                env = {**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank}
                self.ranks.append(start_process(command, env, log.fileno()))

    def _log(self) -> Path:
        return self.folder / "ranks.log"


def serve(folder: Path) -> None:
    """Make the calls that come, on this rank."""
    import torch.distributed as dist

    from asyncrl.train.engine.deepspeed_engine import init_distributed, leave_distributed

    die_with_parent()
    init_distributed()
    for number in itertools.count(1):
        call = folder / f"{number}.json"
        while not call.exists():
            if (folder / "end").exists():
                return leave_distributed()
            time.sleep(LOOK_EVERY_S)
        module, *args = json.loads(call.read_text())
        importlib.import_module(module).main(*args)
        # DeepSpeed has each of its engines collect garbage several times: what the libraries hold stays out of that.
        gc.collect()
        gc.freeze()
        dist.barrier()
        if dist.get_rank() == 0:
            (folder / f"{number}.done").touch()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
