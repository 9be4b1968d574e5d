"""Sends the metrics of a run to Weights & Biases, MLflow, trackio or SwanLab.

Each such sink is a process of its own, which reads the run's folder: it can neither fail the run nor slow it, and it
may run in another Python, since not all of these libraries can be installed beside vLLM:

    PYTHON -I asyncrl/extensions/metric_sinks/send.py NAME LABEL RUN

It ends when its standard input does and what was written by then has been sent. It remembers in `sinks/NAME.json` up to
which step it has come, so a resumed run goes on where it was. This file therefore imports nothing of asyncrl, and takes
one function from a file that imports nothing either. Projects and addresses are the libraries' own variables:
WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_DIR, SWANLAB_MODE, ...
"""

from __future__ import annotations

import json
import os
import runpy
import select
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PROJECT = "asyncrl"
LOOK_S = 1.0
MLFLOW_BATCH = 100
"""Settings that MLflow takes at once."""
MLFLOW_TEXT = 500
"""Characters that MLflow takes of a setting."""
NUMBERS = Path(__file__).parents[2] / "run" / "step_numbers.py"
numbers_of = runpy.run_path(str(NUMBERS))["numbers_of"]


class _RunSink:
    """A run of a library whose runs have `log` and `finish`."""

    _run: Any

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class WandbSink(_RunSink):
    """A run of Weights & Biases; offline with WANDB_MODE=offline, for `wandb sync` later."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], run_id: str) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=name, dir=str(folder), config=dict(config),
            id=run_id or None, resume="allow", settings=wandb.Settings(console="off", x_disable_stats=True),
        )  # fmt: skip
        self.run_id = self._run.id


class MlflowSink:
    """A run of MLflow, at MLFLOW_TRACKING_URI or else in a SQLite file of the run's folder."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], run_id: str) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.sqlite').resolve()}")
        self._client = mlflow.MlflowClient()
        if run_id:
            self.run_id = run_id
            return
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self.run_id = self._client.create_run(experiment.experiment_id, run_name=name).info.run_id
        settings = [Param(key, str(value)[:MLFLOW_TEXT]) for key, value in flat(config)]
        for start in range(0, len(settings), MLFLOW_BATCH):
            self._client.log_batch(self.run_id, params=settings[start : start + MLFLOW_BATCH])

    def write(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        stamp = int(time_s * 1000)
        self._client.log_batch(
            self.run_id, metrics=[self._metric(name, value, stamp, step) for name, value in numbers.items()]
        )

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


class TrackioSink(_RunSink):
    """A run of trackio, in its own folder (TRACKIO_DIR)."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], run_id: str) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT), name=name, config=dict(flat(config)),
            resume="allow", embed=False, auto_log_gpu=False,
        )  # fmt: skip
        self.run_id = name


class SwanlabSink(_RunSink):
    """A run of SwanLab; offline with SWANLAB_MODE=offline, for `swanlab sync` later."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], run_id: str) -> None:
        import swanlab

        self._run = swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME", PROJECT), name=name, log_dir=str(folder / "swanlab"),
            config=dict(config), id=run_id or None, resume="allow" if run_id else None,
            # It would ask for a key on standard input, whose end is this process's.
            settings=swanlab.Settings(interactive=False),
        )  # fmt: skip
        self.run_id = self._run.id


PROCESSES: dict[str, type[WandbSink | MlflowSink | TrackioSink | SwanlabSink]] = {
    "wandb": WandbSink,
    "mlflow": MlflowSink,
    "trackio": TrackioSink,
    "swanlab": SwanlabSink,
}
"""Sinks in processes of their own, each by the name of its library."""


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested sections as `section.key`."""
    if isinstance(value, Mapping) and value:
        for name in value:
            yield from flat(value[name], f"{prefix}{name}.")
    else:
        yield prefix.removesuffix("."), value


class Feed:
    """Sends the steps of a run's `metrics.jsonl` to a sink, each once over all launches of the run."""

    def __init__(self, name: str, label: str, folder: Path) -> None:
        """label: what the run is called there."""
        self._file = folder / "metrics.jsonl"
        self._kept = folder / "sinks" / f"{name}.json"
        self._kept.parent.mkdir(exist_ok=True)
        state = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        self._step: int = state.get("step", 0)
        self._offset = 0
        config = json.loads((folder / "config.json").read_text())
        self._sink = PROCESSES[name](label, self._kept.parent, config, state.get("run_id", ""))

    def send(self) -> None:
        """Send the steps that were added since the last call. A step that a resumed run repeats is not sent again."""
        if not self._file.exists():
            return
        with open(self._file, "rb") as file:
            file.seek(self._offset)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a crash
            if record["step"] > self._step:
                self._sink.write(record["step"], record["time"], numbers_of(record))
                self._step = record["step"]
        if whole:
            partial = self._kept.with_suffix(".partial")
            partial.write_text(json.dumps({"run_id": self._sink.run_id, "step": self._step}))
            partial.replace(self._kept)

    def close(self) -> None:
        self.send()
        self._sink.close()


def main(name: str, label: str, folder: Path) -> None:
    """Feed a sink until standard input ends."""
    feed = Feed(name, label, folder)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        feed.send()
    feed.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
