"""A buffer service on a real socket, in a thread or in a process of its own that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.services.buffer.service import create_buffer_app
from tests.app_thread import END_S, AppThread
from tests.credentials import RUN
from tests.waiting import wait_for_url


class ThreadService(AppThread):
    """`settings` are those of `LedgerSettings`; the defaults are P = 2, S = 1, G = 2."""

    def __init__(self, folder: Path, hooks: Sequence[HookFactory] = (), **settings: Any) -> None:
        chosen = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2, "lease_s": 10.0} | settings
        self.ledger = Ledger(folder / "ledger.sqlite", LedgerSettings(**chosen), hooks=hooks)
        super().__init__(create_buffer_app(self.ledger, RUN), folder)


class ProcessService:
    """`settings` are those of `LedgerSettings`; the defaults are P = 2, S = 1, G = 2."""

    def __init__(
        self, folder: Path, port: int = 0, base_version: int = 0, replica: str = "", **settings: Any
    ) -> None:
        self.folder = folder
        self.replica = replica
        self.port = port
        self.base_version = base_version
        self.settings = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2} | settings
        self.start()

    def start(self) -> None:
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        script = (
            "import json, sys; from pathlib import Path; from asyncrl.services.buffer.service import *; "
            "from asyncrl.extensions.replica.client import follower_of; path, settings, served, where = sys.argv[1:5]; "
            "follower = follower_of(where, Path(path), own_credentials().bearer('buffer')) if where else None; "
            "serve_buffer(path, LedgerSettings(**json.loads(settings)), follower=follower, **json.loads(served))"
        )
        served = {
            "base_version": self.base_version,
            "port": self.port,
            "ready_file": str(ready),
        }
        arguments = [str(self.folder / "ledger.sqlite"), json.dumps(self.settings), json.dumps(served)]
        self.process = subprocess.Popen([sys.executable, "-c", script, *arguments, self.replica])
        self.url = wait_for_url(ready, lambda: self.process.poll() is None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)

    def terminate(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(END_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
