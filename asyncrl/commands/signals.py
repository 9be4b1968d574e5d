"""What a signal does to a command that has started processes."""

from __future__ import annotations

import signal


def end_like_interrupted() -> None:
    """Treat SIGTERM like Ctrl-C from now on, so that processes are stopped in order and their folders removed."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
