"""A service's app on a real socket, served by a thread of this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncrl.services.http.app import serve

START_S = 30.0


class AppThread:
    """Serves `app` at `url` until `close`; `folder` takes the file that says where."""

    def __init__(self, app: Any, folder: Path, name: str = "ready") -> None:
        self.app, ready = app, folder / f"{name}.json"
        self.thread = threading.Thread(target=serve, args=(app,), kwargs={"ready_file": ready})
        self.thread.start()
        self.url = wait_for_url(ready, self.thread.is_alive)

    def close(self) -> None:
        self.app.state.request_exit()
        self.thread.join(START_S)
        assert not self.thread.is_alive()


def wait_for_url(ready: Path, alive: Callable[[], bool]) -> str:
    """Return the address that a service writes to `ready`."""
    deadline = time.monotonic() + START_S
    while not ready.exists():
        assert time.monotonic() < deadline, "the service did not start in time"
        assert alive(), "the service ended"
        time.sleep(0.01)
    return json.loads(ready.read_text())["url"]
