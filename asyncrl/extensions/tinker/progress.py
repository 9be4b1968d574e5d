"""What the server does, for Prometheus and for `asyncrl monitor`, which reads its folder as it reads a run's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncrl.clock import stamp_s
from asyncrl.extensions.tinker.server import Server
from asyncrl.extensions.tinker.views import state

CONTENT_TYPE = "text/plain; version=0.0.4"
WRITTEN_S = 10.0
"""How often the monitor is told: it takes what has not written for 20 s for stopped."""
MOST_BYTES = 2**24
"""Of metrics.jsonl, before its older half is dropped."""
CONFIG = "config.json"
_GAUGES = {
    "sessions": "sessions that the server knows",
    "policies": "policies that are trained",
    "policies_in_memory": "of them those that are not in files alone",
    "training_requests_waiting": "requests for training without an answer",
    "sampling_requests_waiting": "requests for samples without an answer",
    "engine_serves": "1 while the engine serves",
}
_COUNTERS = {
    "steps": "optimizer steps of a client",
    "tokens_trained": "tokens of a client's forward and backward passes",
    "tokens_sampled": "tokens sampled for a client",
}


def exposition(server: Server) -> bytes:
    """Return the state in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Metrics(state(server)))
    return generate_latest(registry)


class _Metrics:
    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, as `prometheus_client` asks a collector to."""
        for name, what in _GAUGES.items():
            yield GaugeMetricFamily(f"asyncrl_tinker_{name}", what, value=float(self._found[name]))
        for name, what in _COUNTERS.items():
            family = CounterMetricFamily(f"asyncrl_tinker_{name}", what, labels=["client"])
            for client, counts in self._found["clients"].items():
                family.add_metric([client], counts[name])
            yield family


def ranks_before(folder: Path) -> int | None:
    """Return by how many ranks the last server of a state folder trained; None for a new folder."""
    try:
        found = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return None
    # Those of earlier servers do not say it.
    ranks: int = found["train"].get("ranks", 1)
    return ranks


class Progress:
    """Writes the files of a run folder that the monitor reads: config.json once, a line of metrics.jsonl a change.

    A run's steps are the optimizer steps of all policies together. ranks: by which they are trained.
    """

    def __init__(self, server: Server, folder: Path, model: str, ranks: int = 1) -> None:
        self.server, self.file = server, folder / "metrics.jsonl"
        train = {"num_steps": 0, "ranks": ranks}
        about = {"env": {"name": "tinker"}, "model": {"path": model}, "train": train}
        (folder / CONFIG).write_text(json.dumps(about))
        self._last: dict[str, Any] = {}

    def write(self) -> None:
        """Write a line if something has changed, and that the server lives."""
        record = self.record()
        if record != self._last:
            with open(self.file, "a") as file:
                file.write(json.dumps({**record, "time": stamp_s()}) + "\n")
            self._last = record
        self.file.touch()
        if self.file.stat().st_size > MOST_BYTES:
            self._shorten()

    def record(self) -> dict[str, Any]:
        """Return the metrics of this moment."""
        found = state(self.server)
        by_client: dict[str, dict[str, int]] = found["clients"]
        sums = {name: sum(counts[name] for counts in by_client.values()) for name in _COUNTERS}
        record = {"step": sums.pop("steps"), **{f"tinker/{name}": value for name, value in sums.items()}}
        record |= {f"tinker/{name}": int(found[name]) for name in _GAUGES}
        for client, counts in by_client.items():
            record |= {f"client/{client}/{name}": value for name, value in counts.items() if client}
        return record

    def _shorten(self) -> None:
        lines = self.file.read_bytes().splitlines(keepends=True)
        kept = self.file.with_suffix(".shorter")
        kept.write_bytes(b"".join(lines[len(lines) // 2 :]))
        kept.replace(self.file)
