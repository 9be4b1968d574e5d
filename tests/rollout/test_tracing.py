"""A group's lease, episodes, turns, put and training are one trace of OpenTelemetry, as a collector gets it."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from asyncrl import tracing
from tests.app_thread import free_port
from tests.rollout.test_worker import setup, until


@pytest.fixture
def collector(monkeypatch):
    """The spans that a collector of OTLP over HTTP has got."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                (service,) = (
                    a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                )
                spans.extend((service, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(tracing.ENDPOINTS[0], f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    yield spans
    tracing.stop_tracing()
    server.shutdown()
    server.server_close()


def play(renderer, tasks):
    """Play some groups of one episode of one turn; return their ids."""
    _, _, buffer, loop = setup(renderer, tasks)
    put, groups = buffer.put, []

    async def noted(group):
        groups.append(group.id)
        return await put(group)

    buffer.put = noted

    async def run():
        running = asyncio.ensure_future(loop.run())
        await until(lambda: loop.counters.groups == tasks or running.done())
        loop.drain()
        await running

    asyncio.run(run())
    return groups


def test_what_is_done_with_a_group_is_one_trace(renderer, collector):
    tracing.start_tracing("rollout")
    groups = play(renderer, 2)
    tracing.stop_tracing()
    tracing.start_tracing("trainer")
    with tracing.groups_spans("train", groups, step=7):
        pass
    tracing.stop_tracing()
    traces = {span.trace_id for _, span in collector}
    assert len(traces) == 2
    for trace in traces:
        spans = {span.name: (service, span) for service, span in collector if span.trace_id == trace}
        assert sorted(spans) == ["episode", "generate", "group", "lease", "open", "put", "step", "train"]
        parents = {name: span.parent_span_id for name, (_, span) in spans.items()}
        first, episode = spans["group"][1], spans["episode"][1]
        assert parents["group"] == b""
        assert {name for name in parents if parents[name] == first.span_id} == {
            "lease",
            "episode",
            "put",
            "train",
        }
        assert {name for name in parents if parents[name] == episode.span_id} == {"open", "generate", "step"}
        assert spans["lease"][1].start_time_unix_nano == first.start_time_unix_nano
        assert first.end_time_unix_nano >= spans["put"][1].end_time_unix_nano
        assert (spans["put"][0], spans["train"][0]) == ("asyncrl-rollout", "asyncrl-trainer")
        assert [(a.key, a.value.int_value) for a in spans["train"][1].attributes] == [("step", 7)]


def test_a_trace_that_the_worker_left_out_is_left_out_by_the_trainer(renderer, collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    names = [f"group-{i}" for i in range(40)]
    tracing.start_tracing("rollout")
    for name in names:
        with tracing.group_span(name, 1.0):
            pass
    with tracing.groups_spans("train", names):
        pass
    tracing.stop_tracing()
    begun = {span.trace_id for _, span in collector if span.name == "group"}
    assert 0 < len(begun) < 40
    assert {span.trace_id for _, span in collector if span.name == "train"} == begun


def test_without_a_collector_nothing_is_recorded_and_no_library_is_loaded(monkeypatch):
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    code = """
        import sys
        from asyncrl import tracing
        tracing.start_tracing("rollout")
        with tracing.group_span("g", 0.0), tracing.span("put"), tracing.groups_spans("train", ["g"]):
            pass
        tracing.stop_tracing()
        sys.exit("opentelemetry" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 0


def test_a_collector_that_is_away_is_told_of_once_and_stops_nobody(monkeypatch):
    monkeypatch.setenv(tracing.ENDPOINTS[0], f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    code = """
        import logging
        logging.basicConfig()
        from asyncrl import tracing
        tracing.EXPORT_S = 0.2
        tracing.start_tracing("rollout")
        for i in range(3):
            with tracing.group_span(f"g{i}", 0.0):
                pass
            tracing._provider.force_flush()
        tracing.stop_tracing()
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "done\n"
    told = [line for line in done.stderr.splitlines() if line.startswith(("WARNING:", "ERROR:"))]
    assert len(told) == 1, done.stderr
