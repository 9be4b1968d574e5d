"""Where the trainer writes its metrics: metrics.jsonl, which `asyncrl.run.metrics` reads, and TensorBoard."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.clock import stamp_s
from asyncrl.run.step_numbers import numbers_of

log = logging.getLogger("asyncrl.train")


class TensorBoardSink:
    """Event files in a folder, as TensorBoard reads them."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(self._event(wall_time=time_s, step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


class MetricsLog:
    """Appends one JSON object a step and sends its numbers to TensorBoard. That may fail, and the log goes on."""

    def __init__(self, folder: str | Path, tensorboard: bool = True) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        torn = self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        if torn:
            # A trainer that was killed within a line must not take the next one with it.
            self._file.write("\n")
        self._sink: TensorBoardSink | None = None
        self._error = ""
        if tensorboard:
            try:
                self._sink = TensorBoardSink(Path(folder) / "tensorboard")
            except Exception as error:
                self._fail(error)

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Record one step; non-numbers go to the JSON lines only. The step after a sink's failure has `sink/error`."""
        record = {"step": step, "time": stamp_s(), **metrics}
        if self._sink is not None:
            try:
                self._sink.write(step, record["time"], numbers_of(metrics))
            except Exception as error:
                self._fail(error)
        if self._error:
            record["sink/error"], self._error = self._error, ""
        self._file.write(json.dumps(record) + "\n")

    def _fail(self, error: Exception) -> None:
        """Do without the sink, whatever its library has raised."""
        self._sink = None
        self._error = f"TensorBoard failed: {type(error).__name__}: {error}"

    def close(self) -> None:
        self._file.close()
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as error:
                log.warning("TensorBoard failed: %s: %s", type(error).__name__, error)
