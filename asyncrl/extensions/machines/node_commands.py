"""Keeps commands running that start nodes elsewhere, such as the steps of a Slurm job."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.hosts.local import spawn
from asyncrl.process_start import Process

log = logging.getLogger("asyncrl.launch")

TICK_S = 0.5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
GRACE_S = 15.0


class NodeCommands(threading.Thread):
    """Runs `commands`, by the name of their node, from a thread: they die with it. Their output goes to
    `logs`/NAME.log. A command that ends is started again, after pauses that grow."""

    def __init__(self, commands: Mapping[str, Sequence[str]], logs: Path, env: Mapping[str, str]) -> None:
        super().__init__(name="node commands", daemon=True)
        self.commands, self.logs, self.env = commands, logs, env
        self._end = threading.Event()

    def run(self) -> None:
        running: dict[str, Process] = {}
        due = dict.fromkeys(self.commands, 0.0)
        pause_s = dict.fromkeys(self.commands, FIRST_PAUSE_S)
        while not self._end.wait(TICK_S):
            for name, command in self.commands.items():
                process = running.get(name)
                if process is not None and process.poll() is None:
                    continue
                if process is not None:
                    running.pop(name)
                    due[name] = time.monotonic() + pause_s[name]
                    log.warning(
                        "the command that starts node %s ended with code %s; again in %g s, see %s",
                        name, process.returncode, pause_s[name], self._log(name),
                    )  # fmt: skip
                    pause_s[name] = min(2 * pause_s[name], LONGEST_PAUSE_S)
                elif time.monotonic() >= due[name]:
                    running[name] = spawn(command, self._log(name), self.env)
        deadline = time.monotonic() + GRACE_S
        for process in running.values():
            # Nodes end by themselves when they are told that the run is over.
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(TICK_S)
            if process.poll() is None:
                os.killpg(process.pid, 9)

    def _log(self, name: str) -> Path:
        return self.logs / f"node-{name}.log"

    def close(self) -> None:
        """Wait a moment for the commands to end, then end them."""
        self._end.set()
        if self.is_alive():
            self.join(2 * GRACE_S)
