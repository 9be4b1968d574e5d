"""Two ranks under torchrun that serve all tests of a process, since starting them takes longer than what they do.

python -m torch.distributed.run ... -m tests.ranks FOLDER
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

from asyncrl.jsonfile import write_json
from asyncrl.process_hooks import die_with_parent

ROOT = Path(__file__).parent.parent
LOOK_EVERY_S = 0.02
CALL_S = 500.0
END_S = 60.0


class TwoRanks:
    """Started by the first call. `folder` takes the calls and the ranks' output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.calls = itertools.count(1)

    def call(self, module: str, *args: str) -> None:
        """Run `module.main(*args)` on both ranks to its end; where one fails, so does this."""
        if self.process is None:
            self._start()
        assert self.process is not None
        number = next(self.calls)
        write_json(self.folder / f"{number}.json", [module, *args])
        deadline = time.monotonic() + CALL_S
        while not (self.folder / f"{number}.done").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"{module} on two ranks:\n{self._log().read_text()[-3000:]}")
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        if self.process is None:
            return
        (self.folder / "end").touch()
        try:
            self.process.wait(END_S)
        finally:
            self.process.kill()
            self.process = None

    def _start(self) -> None:
        self.folder = self.folder / str(next(self.calls))
        self.folder.mkdir(parents=True)
        self.calls = itertools.count(1)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with open(self._log(), "wb") as log:
            self.process = subprocess.Popen(
                [*torchrun, "-m", "tests.ranks", str(self.folder)],
                cwd=ROOT, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip

    def _log(self) -> Path:
        return self.folder / "ranks.log"


def serve(folder: Path) -> None:
    """Make the calls that come, on this rank."""
    import torch.distributed as dist

    from asyncrl.train.deepspeed_engine import init_distributed, leave_distributed

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
