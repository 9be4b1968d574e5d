"""OpenTelemetry spans of groups: lease, episodes with their turns, put, train.

Nothing is recorded unless OTEL_EXPORTER_OTLP_ENDPOINT (or its form for traces) names a collector that speaks OTLP over
HTTP. The ids of a group's trace and of its first span follow from the group's id, so the trainer adds its span to the
trace that a worker began, and nothing of it travels with the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Imported when it is used: most runs record no spans.
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORT_S = 5.0
"""What sending some spans may take, which a thread of its own does."""
LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)
"""They say that spans cannot be sent."""
_first: ContextVar[str] = ContextVar("first", default="")
"""The group whose first span is being made."""
_provider: TracerProvider | None = None
_tracer: Tracer | None = None


def start_tracing(service: str) -> None:
    """Record the spans of this process, if there is a collector. service: its name there, such as "rollout"."""
    global _provider, _tracer
    if not any(os.environ.get(name) for name in ENDPOINTS) or _provider is not None:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class GroupIds(RandomIdGenerator):
        """Those of a group's first span follow from its id."""

        def generate_trace_id(self) -> int:
            return _trace_id(_first.get()) if _first.get() else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return _span_id(_first.get()) if _first.get() else super().generate_span_id()

    once = _Once()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(once)
    resource = Resource.create({"service.name": f"asyncrl-{service}"})
    _provider = TracerProvider(resource=resource, id_generator=GroupIds())
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_S)))
    _tracer = _provider.get_tracer("asyncrl")


def stop_tracing() -> None:
    """Send the spans that are left."""
    global _provider, _tracer
    if _provider is not None:
        _provider.shutdown()
    _provider = _tracer = None


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Record what the block does, inside the span around it."""
    if _tracer is None:
        return contextlib.nullcontext()
    return _tracer.start_as_current_span(name, attributes=attributes)


@contextlib.contextmanager
def group_span(group_id: str, lease_start_s: float, **attributes: Any) -> Iterator[None]:
    """Record a group's first span, from the call that leased it, which is its first part.

    lease_start_s: seconds since 1970.
    """
    if _tracer is None:
        yield
        return
    start_ns = int(lease_start_s * 1e9)
    from opentelemetry import context, trace

    token = _first.set(group_id)
    try:
        first = _tracer.start_span("group", context.Context(), attributes=attributes, start_time=start_ns)
    finally:
        _first.reset(token)
    with trace.use_span(first, end_on_exit=True):
        _tracer.start_span("lease", start_time=start_ns).end()
        yield


@contextlib.contextmanager
def groups_spans(name: str, group_ids: Iterable[str], **attributes: Any) -> Iterator[None]:
    """Record in the trace of each of these groups what the block does to all of them at once."""
    start_ns = time.time_ns()
    yield
    if _tracer is None or _provider is None:
        return
    from opentelemetry import trace

    end_ns = time.time_ns()
    for group_id in group_ids:
        trace_id = _trace_id(group_id)
        # As the worker decided it: samplers go by the trace's id.
        if not _provider.sampler.should_sample(None, trace_id, "group").decision.is_sampled():
            continue
        first = trace.SpanContext(
            trace_id, _span_id(group_id), True, trace.TraceFlags(trace.TraceFlags.SAMPLED)
        )
        parent = trace.set_span_in_context(trace.NonRecordingSpan(first))
        _tracer.start_span(name, parent, attributes=attributes, start_time=start_ns).end(end_ns)


class _Once(logging.Filter):
    """Lets one message pass: a collector that is away would be told of with each batch."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = False

    def filter(self, record: logging.LogRecord) -> bool:
        passes, self._passed = not self._passed, True
        return passes


def _trace_id(group_id: str) -> int:
    return int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:16], "big")


def _span_id(group_id: str) -> int:
    return int.from_bytes(hashlib.sha256(group_id.encode()).digest()[16:24], "big")
