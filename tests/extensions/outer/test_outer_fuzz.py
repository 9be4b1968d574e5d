"""The outer optimizer's service against hostile requests: see `tests.services.fuzzing`."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.outer.messages import PART_BYTES
from asyncrl.extensions.outer.service import MAX_BODY_BYTES
from tests.extensions.outer.served import A, B, C, Served, weights
from tests.services import fuzzing
from tests.services.fuzzing import JSON, MSGPACK, Fuzzed, Route

STRANGERS = ["worker", "gateway", "engine", "env", "guest", "old_policy", "openenv", "peer"]
TERMS = {
    "members": 3, "every": 2, "method": "mean", "bits": 32, "learning_rate": 1.0, "momentum": 0.0,
    "wait_timeout_s": 100.0, "fragments": [{"a": [2]}, {"b": [1, 2]}],
}  # fmt: skip
ABOUT = {"run": A, "fragment": 0}
ROUTES = [
    Route("POST", "/v1/outer/join", {"run": B, "member": 1, "name": "run-b", "terms": TERMS}, too_large=MAX_BODY_BYTES),
    Route("POST", "/v1/outer/part", ABOUT | {"version": 2, "offset": 0, "data": b"xy"}, (MSGPACK,)),
    Route("POST", "/v1/outer/part", ABOUT | {"version": 2, "offset": 0, "data": "xy"}, (JSON,), MAX_BODY_BYTES),
    Route("POST", "/v1/outer/put", ABOUT | {"version": 2, "size": 2, "checksum": "0" * 32, "start": False}),
    Route("POST", "/v1/outer/look", ABOUT | {"wanted": 0, "have": -1, "wait_s": 0}),
    Route("POST", "/v1/outer/read", ABOUT | {"round": 0, "kind": "whole", "offset": 0, "size": PART_BYTES}),
    Route("POST", "/v1/outer/leave", {"run": C}),
    Route("GET", "/v1/outer/status"),
]  # fmt: skip


def fuzzed(served):
    """The service with a member `A`, whose weights everything begins with."""
    steps = 0

    def state():
        status = served.rounds.status()
        # A member that is heard from is there again, whatever it says.
        members = [{key: one[key] for key in ("counted", "member", "name")} for one in status["members"]]
        files = {
            p.relative_to(served.folder) for p in served.rounds.folder.rglob("*") if "partial" not in p.parts
        }
        return status["rounds"], members, files

    def works():
        nonlocal steps
        steps += 1
        assert served.member(A, 0).fetch(0, 0, -1, 0.0) is not None
        assert len(weights(served.member(A, 0))) == 2

    return Fuzzed(served.app.url, "outer", ROUTES, state, works)


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    found.member(A, 0)
    yield found
    found.stop()


@pytest.mark.slow
def test_no_body_breaks_the_rounds_and_none_that_is_refused_changes_them(served):
    service = fuzzed(served)
    before = weights(served.member(A, 0))
    fuzzing.fuzz_bodies(service)
    assert min(service.seen[route.path, 400] for route in ROUTES if route.body) > 100
    assert weights(served.member(A, 0)) == before


def test_other_types_sizes_and_methods_are_refused(served):
    service = fuzzed(served)
    fuzzing.fuzz_framing(service)
    fuzzing.fuzz_paths(service)


def test_nobody_without_the_right_token_takes_part(served):
    fuzzing.fuzz_tokens(fuzzed(served), STRANGERS)


def test_connections_that_say_nothing_or_break_keep_nobody_out(served):
    fuzzing.fuzz_connections(fuzzed(served))


def test_terms_of_a_join_that_is_refused_bind_nobody(tmp_path):
    found = Served(tmp_path)
    try:
        client = found.client(A, 9, learning_rate=0.5)
        with pytest.raises(ConfigError, match=r"outer\.member: must be below 3, got 9"):
            client.join([{"a": (2,)}, {"b": (1, 2)}], 1.0)
        assert [path.name for path in found.rounds.folder.iterdir()] == ["lock"]
        found.again()
        assert found.client(B, 1).join([{"a": (2,)}, {"b": (1, 2)}], 1.0).start
    finally:
        found.stop()
