"""What the environment service says about itself: environments, counts, metrics."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import psutil
from fastapi import FastAPI, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncrl.env.host import EnvHost
from asyncrl.env.registry import ENVS, load_env
from asyncrl.errors import InputError
from asyncrl.services.env.messages import errors
from asyncrl.services.env.workers.pool import WorkerPool
from asyncrl.services.http.metrics import add_metrics


def add_status(app: FastAPI, host: EnvHost) -> None:
    """Add the routes under which the service describes itself."""

    @app.get("/v1/envs", responses=errors())
    async def envs() -> dict[str, list[str]]:
        return {"envs": sorted(ENVS if host.served is None else host.served)}

    @app.get("/v1/envs/{name}/schema", responses=errors())
    async def schema(name: str) -> dict[str, Any]:
        env = load_env(name) if name in (ENVS if host.served is None else host.served) else None
        if env is None:
            raise InputError(f"unknown environment {name!r}; allowed: {', '.join(sorted(ENVS))}")
        doc = (env.__doc__ or "").strip()
        return {"name": name, "tools": env.tools, "max_turns": env.max_turns, "doc": doc}

    @app.get("/v1/status", responses=errors())
    async def status() -> dict[str, Any]:
        return summary(host)

    add_metrics(app, Metrics(host), responses=errors(), response_class=Response)


def summary(host: EnvHost) -> dict[str, Any]:
    """Counts since the start, live sessions by environment, and the worker processes where there are any."""
    failures = {str(kind): number for kind, number in host.counts.failures.items()}
    found = {
        "sessions": len(host.sessions),
        "stepping": sum(session.lock.locked() for session in host.sessions.values()),
        "places": host.places.most,
        "queued": host.places.queued,
        "cpu_s": _cpu_s(host),
        **_totals(host),
        "failures": failures,
        "held": dict(host.held),
    }
    if isinstance(host.runtime, WorkerPool):
        pool = host.runtime
        found["workers"] = [
            {"number": w.number, "pid": w.pid, "sessions": len(w.sessions)} for w in pool.ready()
        ]
        found["workers_replaced"] = dict(pool.replaced)
    return found


def _cpu_s(host: EnvHost) -> float:
    """Return the processor time of this process and of the worker processes that live."""
    used_s = time.process_time()
    for worker in host.runtime.ready() if isinstance(host.runtime, WorkerPool) else ():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(worker.pid).cpu_times()
            used_s += times.user + times.system
    return used_s


class Metrics:
    """Exports the same to Prometheus."""

    def __init__(self, host: EnvHost) -> None:
        self.host = host

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, as `prometheus_client` asks a collector to."""
        host = self.host
        yield GaugeMetricFamily("asyncrl_env_sessions", "live sessions", value=len(host.sessions))
        # Built-in names only: other names in tasks are free text, and Prometheus keeps each label value forever.
        held = Counter[str]()
        for name, number in host.held.items():
            held[name if name in ENVS else "other"] += number
        yield _labelled(GaugeMetricFamily, "held", "sessions that count against the limits", "env", held)
        for name, value in _totals(host).items():
            yield CounterMetricFamily(f"asyncrl_env_{name}", f"{name} since the start", value=value)
        what = "failed calls by class"
        yield _labelled(CounterMetricFamily, "failures", what, "failure", host.counts.failures)
        yield GaugeMetricFamily(
            "asyncrl_env_overrun", "calls that hold a thread past their deadline", value=host.runtime.overrun
        )
        if isinstance(host.runtime, WorkerPool):
            pool = host.runtime
            yield GaugeMetricFamily(
                "asyncrl_env_workers_ready", "worker processes that take sessions", value=len(pool.ready())
            )
            yield GaugeMetricFamily(
                "asyncrl_env_workers_retired", "worker processes that only end", value=len(pool.retired)
            )
            what = "worker processes replaced, by reason"
            yield _labelled(CounterMetricFamily, "workers_replaced", what, "reason", pool.replaced)


def _totals(host: EnvHost) -> dict[str, int]:
    names = [field.name for field in fields(host.counts) if field.name != "failures"]
    return {name: getattr(host.counts, name) for name in names}


def _labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    doc: str,
    label: str,
    values: Counter[str],
) -> Metric:
    metric = family(f"asyncrl_env_{name}", doc, labels=[label])
    for key, value in values.items():
        metric.add_metric([str(key)], value)
    return metric
