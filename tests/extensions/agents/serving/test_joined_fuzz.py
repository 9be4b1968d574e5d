"""The routes of a gateway that has joined a run against hostile requests: see `tests.services.fuzzing`."""

import pytest

from asyncrl.types import Task
from tests.extensions.agents.serving.test_joined_service import CALLERS, NEXT, ask, buffer, next_of, start
from tests.services import fuzzing
from tests.services.fuzzing import Fuzzed, Route

__all__ = ["buffer", "start"]

REWARD = {"reward": 0.5, "call_id": None, "components": {"a": 1.0}, "success": True}
FINISH = {"reward": 0.5, "components": {"a": 1.0}, "success": True}
ROUTES = [
    Route("POST", NEXT, {"wait_s": 0.1}),
    Route("GET", "/asyncrl/v1/episodes/ID"),
    Route("DELETE", "/asyncrl/v1/episodes/ID"),
    Route("POST", "/asyncrl/v1/episodes/ID/reward", REWARD),
    Route("POST", "/asyncrl/v1/episodes/ID/finish", FINISH),
    Route("GET", "/asyncrl/v1/status"),
    Route("GET", "/metrics"),
    Route("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, (fuzzing.JSON,)),
]
WAITS = (b"", b"{}", b"\x80")
"""Bodies that wait as long as a call waits by default."""
STRANGERS = ["trainer", "peer", "engine", "env", "guest", "old_policy", "openenv"]


@pytest.fixture
def service(start):
    gateway, http = start()

    def state():
        status = http.get("/asyncrl/v1/status").json()
        return [status[name] for name in ("running", "waiting", "played")]

    def works():
        assert http.post(NEXT, json={"wait_s": 0}).json() == {"episode": None}

    return Fuzzed(gateway.url, "gateway", ROUTES, state, works, CALLERS.text), http


def test_no_wish_for_an_episode_breaks_the_gateway(service):
    fuzzed, _ = service
    for kind in ROUTES[0].kinds:
        for raw in fuzzing.MADE[kind](ROUTES[0].body):
            if raw not in WAITS:
                fuzzed.send(ROUTES[0], raw, kind)
    fuzzed.works()


def test_no_word_about_an_episode_breaks_the_gateway_and_none_that_is_refused_counts(service, buffer):
    fuzzed, http = service
    ask(buffer, lambda client: client.add_tasks([Task("t", "agent", 1)]))
    episode = f"/asyncrl/v1/episodes/{next_of(http)['id']}"
    whole, fuzzed.state = fuzzed.state, lambda: (whole(), http.get(episode).json())
    for name, body in (("reward", REWARD), ("finish", FINISH)):
        route = Route("POST", f"{episode}/{name}", body)
        for kind in route.kinds:
            for raw in fuzzing.MADE[kind](body):
                fuzzed.send(route, raw, kind)
    assert not fuzzed.seen[f"{episode}/finish", 200], "no call of it was answered"
    assert whole() == [["t"], 1, 1]


def test_other_ids_types_and_methods_are_refused(service):
    fuzzing.fuzz_paths(service[0])
    fuzzing.fuzz_framing(service[0])


def test_nobody_without_the_token_of_those_who_ask_is_answered(service):
    fuzzing.fuzz_tokens(service[0], STRANGERS)


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service[0])


def test_its_metrics_are_those_of_a_worker_and_of_a_gateway(service):
    _, http = service
    shown = http.get("/metrics").text
    assert "asyncrl_rollout_running_groups 0.0" in shown and "asyncrl_gateway_open_episodes 0.0" in shown
