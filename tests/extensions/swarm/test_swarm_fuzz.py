"""The service of shared rollouts against hostile requests: see `tests.services.fuzzing`."""

import msgpack
import pytest

from asyncrl.extensions.swarm.service import MAX_BODY_BYTES, create_swarm_app
from asyncrl.extensions.swarm.store import Store
from tests.app_thread import AppThread
from tests.credentials import PACKED, RUN
from tests.services import fuzzing
from tests.services.fuzzing import JSON, MSGPACK, Fuzzed, Route

A, B, FAMILY = "a" * 32, "b" * 32, "1" * 32
ROUTES = [
    Route(
        "POST",
        "/v1/swarm/publish",
        {"run": A, "family": FAMILY, "name": "run-a", "groups": ["one"]},
        (JSON,),
        MAX_BODY_BYTES,
    ),
    Route(
        "POST",
        "/v1/swarm/publish",
        {"run": A, "family": FAMILY, "name": "run-a", "groups": [b"one"]},
        (MSGPACK,),
    ),
    Route(
        "POST",
        "/v1/swarm/fetch",
        {"run": B, "family": FAMILY, "store": "", "after": 0, "count": 9},
        too_large=MAX_BODY_BYTES,
    ),
    Route("GET", "/v1/swarm/status"),
]


@pytest.fixture
def service(tmp_path):
    store = Store(tmp_path / "swarm")
    app = AppThread(create_swarm_app(store, RUN.access("swarm")), tmp_path)
    number = 0

    def works():
        nonlocal number
        number += 1
        group = b"group %d" % number
        sent = {"run": A, "family": "f" * 32, "name": "run-a", "groups": [group]}
        wanted = {"run": B, "family": "f" * 32, "store": "", "after": 0, "count": 1}
        assert ask("publish", sent) == {"stored": 1}
        assert [one["body"] for one in ask("fetch", wanted)["groups"]] == [group]

    def ask(name, body):
        status, answer = fuzzed.ask("POST", f"/v1/swarm/{name}", msgpack.packb(body), list(PACKED.items()))
        assert status == 200, answer
        return msgpack.unpackb(answer)

    fuzzed = Fuzzed(app.url, "swarm", ROUTES, store.status, works)
    yield fuzzed
    app.close()
    store.close()


@pytest.mark.slow
def test_no_body_breaks_the_swarm_and_none_that_is_refused_leaves_a_group(service):
    fuzzing.fuzz_bodies(service)
    assert min(service.seen[route.path, 400] for route in ROUTES if route.body) > 300
    assert not any("/" in run["run"] for run in service.state()["runs"])


def test_other_types_sizes_and_methods_are_refused(service):
    fuzzing.fuzz_framing(service)
    fuzzing.fuzz_paths(service)


def test_nobody_without_the_right_token_leaves_or_gets_a_group(service):
    fuzzing.fuzz_tokens(service, ["worker", "gateway", "engine", "env", "guest", "old_policy", "openenv"])


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service)
