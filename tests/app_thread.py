"""A service's app on a real socket, served by a thread of this process."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

from asyncrl.services.http.app import serve
from tests.waiting import wait_for_url

END_S = 60.0


def free_port() -> int:
    """Return a port on which nobody listens at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class AppThread:
    """Serves `app` at `url` until `close`; `folder` takes the file that says where."""

    def __init__(self, app: Any, folder: Path, name: str = "ready") -> None:
        self.app, ready = app, folder / f"{name}.json"
        self.thread = threading.Thread(target=serve, args=(app,), kwargs={"ready_file": ready})
        self.thread.start()
        self.url = wait_for_url(ready, self.thread.is_alive)

    def close(self) -> None:
        self.app.state.request_exit()
        self.thread.join(END_S)
        assert not self.thread.is_alive()
