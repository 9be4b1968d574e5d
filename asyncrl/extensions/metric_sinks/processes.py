"""The processes that send a run's metrics elsewhere (`run.sinks`). They may fail, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.metric_sinks import send
from asyncrl.extensions.metric_sinks.settings import MetricSinks
from asyncrl.run.folder import folder_of

END_S = 60.0
"""How long sinks may take to send the last steps of a run that has ended."""
CHECK_S = 60.0


def check_sinks(config: Config, alone: bool = True) -> None:
    """Check that the library of each sink is there. Raises `ConfigError`."""
    for name in config.section(MetricSinks).sink_processes:
        python = interpreter(config)
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        try:
            missing = subprocess.run([python, "-I", "-c", code], check=False, timeout=CHECK_S).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"run.sink_python: {python!r} cannot be run: {error}") from error
        if missing:
            raise ConfigError(
                f"run.sinks: {name!r} is not installed for {python}; install it there, or into an environment of its "
                "own and name that one's python in run.sink_python (docs/metrics.md)"
            )


def interpreter(config: Config) -> str:
    return config.section(MetricSinks).sink_python or sys.executable


class SinkProcesses:
    """The sinks of a run. They read its folder, and end when it does."""

    def __init__(self, folder: Path, config: Config) -> None:
        self._logs = folder / "logs"
        self._logs.mkdir(exist_ok=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for sink in config.section(MetricSinks).sink_processes:
            self._start(f"sink-{sink}", sink, folder.resolve().name, folder, interpreter(config))
            for policy in config.policies:
                label = f"{folder.resolve().name}-{policy}"
                self._start(
                    f"sink-{sink}-{policy}", sink, label, folder_of(folder, policy), interpreter(config)
                )

    def _start(self, name: str, sink: str, label: str, folder: Path, python: str) -> None:
        with open(self._log(name), "ab") as log:
            # It ends with its standard input, however this process ends; a Ctrl-C is not for it.
            self._running[name] = subprocess.Popen(
                [python, "-I", send.__file__, sink, label, str(folder)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def failures(self) -> Iterator[str]:
        """Yield a line for each sink that has failed, once."""
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                yield self._failure(name, f"ended with exit code {process.returncode}")

    def finish(self) -> Iterator[str]:
        """Let the sinks send what is left and end; yield a line for each that fails."""
        yield from self.failures()
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.close()
        deadline = time.monotonic() + END_S
        try:
            for name, process in self._running.items():
                try:
                    if code := process.wait(max(0.1, deadline - time.monotonic())):
                        yield self._failure(name, f"ended with exit code {code}")
                except subprocess.TimeoutExpired:
                    yield self._failure(name, f"had not sent everything {END_S:g} s after the run")
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
            self._running.clear()

    def _failure(self, name: str, how: str) -> str:
        return (
            f"{name} {how}; metrics.jsonl has everything, and the run does without it: see {self._log(name)}"
        )

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
