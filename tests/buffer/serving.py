"""A buffer service on a real socket, in a thread or in a process of its own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.services.buffer import create_buffer_app
from asyncrl.services.http import serve

START_S = 30.0


class ThreadService:
    """`settings` are those of `LedgerSettings`; the defaults are P = 2, S = 1, G = 2."""

    def __init__(self, folder: Path, token: str = "", **settings: Any) -> None:
        chosen = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2, "lease_s": 10.0} | settings
        self.ledger = Ledger(folder / "ledger.sqlite", LedgerSettings(**chosen))
        self.app = create_buffer_app(self.ledger, token)
        self._ready = folder / "ready.json"
        self._thread = threading.Thread(target=serve, args=(self.app,), kwargs={"ready_file": self._ready})
        self._thread.start()
        self.url = _wait_for(self._ready, self._thread.is_alive)

    def close(self) -> None:
        self.app.state.request_exit()
        self._thread.join(START_S)
        assert not self._thread.is_alive()


class ProcessService:
    """Arguments as for `serve_buffer`."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.folder = folder
        self.arguments = {
            "ledger": str(folder / "ledger.sqlite"),
            "ready_file": str(folder / "ready.json"),
            "groups_per_step": 2,
            "max_staleness": 1,
            "group_size": 2,
        } | arguments
        self.start()

    def start(self) -> None:
        script = "import json, sys; from asyncrl.services.buffer import serve_buffer; "
        script += "serve_buffer(**json.loads(sys.argv[1]))"
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, "-c", script, json.dumps(self.arguments)])
        self.url = _wait_for(ready, lambda: self.process.poll() is None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(START_S)

    def terminate(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(START_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


def _wait_for(ready: Path, alive: Callable[[], bool]) -> str:
    deadline = time.monotonic() + START_S
    while not ready.exists():
        assert time.monotonic() < deadline, "the service did not start in time"
        assert alive(), "the service ended"
        time.sleep(0.01)
    return json.loads(ready.read_text())["url"]
