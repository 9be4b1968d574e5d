"""What a signal does to a command that has started processes."""

from __future__ import annotations

import signal

from asyncrl.console import forget_terminal


def end_like_interrupted() -> None:
    """Treat SIGTERM like Ctrl-C from now on, so that processes are stopped in order and their folders removed; and
    SIGHUP, which a terminal sends that is closed, unless it is ignored as under nohup."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _hang_up(signum: int, frame: object) -> None:
    # A shell that ends sends it again, and the kernel SIGCONT with it: once is enough.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    forget_terminal()
    raise KeyboardInterrupt
