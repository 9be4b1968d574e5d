"""The monitor against hostile requests: see `tests.services.fuzzing`. It reads nothing beside the runs and writes
nothing."""

import json

import pytest

from asyncrl.extensions.monitor.service import monitor_app
from tests.app_thread import AppThread
from tests.credentials import RUN
from tests.run.folders import make_run
from tests.services import fuzzing
from tests.services.fuzzing import Fuzzed, Route

SECRET = "what stands beside the runs"
ROUTES = [
    Route("GET", "/", open=True),
    Route("GET", "/healthz", open=True),
    Route("GET", "/metrics"),
    Route("GET", "/web/ID"),
    Route("GET", "/api/runs"),
    Route("GET", "/api/run?name=one"),
    Route("GET", "/api/steps?name=one&keys=reward/mean&after=1"),
    Route("GET", "/api/timeline?name=one"),
    Route("GET", "/api/log?name=one&process=engine-0"),
    Route("GET", "/api/compare?names=one"),
    Route("GET", "/api/export?names=one"),
    Route(
        "GET",
        "/api/episodes?name=one&sort=step&descending=true&offset=0&limit=5&env=x&success=true&text=a&min_step=1&max_reward=2",
    ),
    Route("GET", "/api/episode?name=one&step=1&group=g-t1-0&index=0"),
    Route("GET", "/api/tree?name=one&step=1&group=g-t1-0"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitor")
    make_run(folder / "runs" / "one")
    (folder / "secret.log").write_text(SECRET)
    app = AppThread(monitor_app(folder / "runs", RUN.access("monitor")), folder)

    def state():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def works():
        status, answer = fuzzed.ask("GET", "/api/runs", headers=[("Authorization", f"Bearer {fuzzed.token}")])
        assert (status, json.loads(answer)["runs"][0]["name"]) == (200, "one")

    fuzzed = Fuzzed(app.url, "monitor", ROUTES, state, works)
    yield fuzzed
    app.close()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path.partition("?")[0])
def test_every_route_answers_a_right_request(service, route):
    assert service.send(route, None, path=route.path.replace("ID", "main.js")) == 200


@pytest.mark.slow
def test_no_name_number_or_text_of_a_query_breaks_the_monitor_or_leads_out_of_the_runs(service):
    before = service.state()
    fuzzing.fuzz_paths(service)
    assert service.state() == before
    for name in ("..", "../runs/one", "one/../one", "/etc", "one/.."):
        for process in ("../../secret", "..%2f..%2fsecret", "secret"):
            _, answer = service.ask(
                "GET",
                f"/api/log?name={name}&process={process}",
                headers=[("Authorization", f"Bearer {service.token}")],
            )
            assert SECRET.encode() not in answer


def test_nobody_without_the_right_token_sees_a_run(service):
    fuzzing.fuzz_tokens(
        service, ["trainer", "worker", "gateway", "engine", "env", "guest", "old_policy", "peer"]
    )


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service)
