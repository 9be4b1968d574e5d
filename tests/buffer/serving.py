"""A buffer service on a real socket, in a thread or in a process of its own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.services.buffer import create_buffer_app
from tests.app_thread import START_S, AppThread, wait_for_url
from tests.credentials import RUN


class ThreadService(AppThread):
    """`settings` are those of `LedgerSettings`; the defaults are P = 2, S = 1, G = 2."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        chosen = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2, "lease_s": 10.0} | settings
        self.ledger = Ledger(folder / "ledger.sqlite", LedgerSettings(**chosen))
        super().__init__(create_buffer_app(self.ledger, RUN), folder)


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
        self.url = wait_for_url(ready, lambda: self.process.poll() is None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(START_S)

    def terminate(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(START_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
