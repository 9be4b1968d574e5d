"""The newest state of runs in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from asyncrl.run.json_lines import last_record
from asyncrl.run.runs import RunLine
from asyncrl.run.step_numbers import numbers_of

CONTENT_TYPE = "text/plain; version=0.0.4"
_STATES = ("pending", "in_flight", "ready", "taken", "trained", "dropped", "failed")


def exposition(runs: Iterable[tuple[RunLine, Path]]) -> bytes:
    """Return the state and step of each run and, of those that are running, what their newest records hold."""
    registry = CollectorRegistry()
    registry.register(_Runs(list(runs)))
    return generate_latest(registry)


class _Runs:
    def __init__(self, runs: list[tuple[RunLine, Path]]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, as `prometheus_client` asks a collector to."""
        running = GaugeMetricFamily("asyncrl_run_running", "1 while a run is running.", labels=["run"])
        step = GaugeMetricFamily("asyncrl_run_step", "Steps that a run has trained.", labels=["run"])
        for line, _ in self._runs:
            running.add_metric([line.name], float(line.state == "running"))
            step.add_metric([line.name], line.step)
        yield from (running, step)
        live = [(line.name, folder) for line, folder in self._runs if line.state == "running"]
        yield self._steps(live)
        samples = {name: last_record(folder / "activity.jsonl") or {} for name, folder in live}
        yield from _buffers(samples)
        yield from _engines(samples)
        yield from _processes(samples)
        yield from _counts(samples)

    def _steps(self, live: Iterable[tuple[str, Path]]) -> Metric:
        family = GaugeMetricFamily(
            "asyncrl_step_metric", "Metrics of a run's newest step, by name.", labels=["run", "metric"]
        )
        for name, folder in live:
            for metric, value in numbers_of(last_record(folder / "metrics.jsonl") or {}).items():
                family.add_metric([name, metric], value)
        return family


def _buffers(samples: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    groups = GaugeMetricFamily(
        "asyncrl_buffer_groups", "Groups of a run's buffer by state.", labels=["run", "state"]
    )
    slots = GaugeMetricFamily(
        "asyncrl_buffer_slots", "Groups that the staleness limit admits.", labels=["run"]
    )
    for run, sample in samples.items():
        buffer = sample.get("buffer", {})
        for state in _STATES:
            if state in buffer:
                groups.add_metric([run, state], buffer[state])
        if "slots" in buffer:
            slots.add_metric([run], buffer["slots"])
    yield from (groups, slots)


def _engines(samples: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["run", "engine"]
    requests = GaugeMetricFamily(
        "asyncrl_engine_requests", "Requests of an engine, running and waiting.", labels=[*labels, "state"]
    )
    cache = GaugeMetricFamily("asyncrl_engine_kv_usage", "Share of the KV cache in use.", labels=labels)
    version = GaugeMetricFamily("asyncrl_engine_version", "Version of the weights served.", labels=labels)
    for run, sample in samples.items():
        for name, engine in sample.get("engines", {}).items():
            for state in ("running", "waiting"):
                requests.add_metric([run, name, state], engine.get(state, 0))
            for family, key in ((cache, "kv_usage"), (version, "version")):
                if engine.get(key) is not None:
                    family.add_metric([run, name], engine[key])
    yield from (requests, cache, version)


def _processes(samples: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ["run", "process"]
    cores = GaugeMetricFamily(
        "asyncrl_process_cores", "Processor time of a process, in cores.", labels=labels
    )
    memory = GaugeMetricFamily("asyncrl_process_memory_bytes", "Resident memory of a process.", labels=labels)
    for run, sample in samples.items():
        for family, key in ((cores, "processes"), (memory, "memory_bytes")):
            for name, value in sample.get(key, {}).items():
                family.add_metric([run, name], value)
    yield from (cores, memory)


def _counts(samples: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    family = GaugeMetricFamily("asyncrl_run_processes", "Processes of a role.", labels=["run", "role"])
    for run, sample in samples.items():
        for role, count in sample.get("counts", {}).items():
            family.add_metric([run, role], count)
    yield family
