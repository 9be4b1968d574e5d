"""Sets the clock of a run's processes, forward and back, without setting that of the machine (`set_clock.c`)."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from asyncrl.errors import ConfigError

VARIABLE = "ASYNCRL_TEST_CLOCK"
SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "set_clock.so"


def start_again_with_clock(folder: Path) -> None:
    """Replace this process by one with the same arguments, whose clock and those of its children can be set.

    It returns in that one. Raises `ConfigError` without a C compiler.
    """
    if VARIABLE in os.environ:
        return
    library, clock = folder / LIBRARY, folder / "clock"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"a C compiler (cc) is needed to set a run's clock: {error}") from error
    clock.write_bytes(struct.pack("=q", 0))
    os.environ |= {VARIABLE: str(clock), "LD_PRELOAD": str(library)}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def remove_clock() -> None:
    """Remove the folder of `start_again_with_clock`, where there is one."""
    if VARIABLE in os.environ:
        shutil.rmtree(Path(os.environ[VARIABLE]).parent, ignore_errors=True)


def set_clock(ahead_s: int) -> None:
    """Set the clock of these processes so many seconds ahead of the machine's, or behind it."""
    file = os.open(os.environ[VARIABLE], os.O_WRONLY)
    os.pwrite(file, struct.pack("=q", ahead_s), 0)
    os.close(file)


def follow_it(pids: Iterable[int]) -> int:
    """Return how many of these processes' clocks can be set."""
    return sum(LIBRARY in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
