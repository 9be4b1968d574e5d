"""The gateway's routes for those who run episodes against hostile requests: see `tests.services.fuzzing`."""

import json

import pytest

from asyncrl.extensions.agents.gateway.owner_api import MAX_BODY_BYTES
from tests.app_thread import AppThread
from tests.credentials import JSON
from tests.services import fuzzing
from tests.services.fuzzing import Fuzzed, Route

SPEC = {
    "task_id": "t", "episode_index": 0, "temperature": 1.0, "max_tokens": 100, "max_tokens_per_turn": 9, "max_calls": 3,
    "seed": 1, "min_version": 0, "response_format": "ignore", "max_trajectories": 4, "headers": {"agent": "x-a"},
    "housekeeping": ["a title"], "order": 1,
}  # fmt: skip
REWARD = {"reward": 0.5, "call_id": None, "components": {"a": 1.0}, "success": True}
FINISH = {
    "status": "failed",
    "failure": "agent",
    "error": "gave up",
    "reward": 0.5,
    "components": {"a": 1.0},
    "success": False,
}
ROUTES = [
    Route("POST", "/asyncrl/v1/episodes", SPEC, too_large=MAX_BODY_BYTES),
    Route("GET", "/asyncrl/v1/episodes/ID"),
    Route("DELETE", "/asyncrl/v1/episodes/ID"),
    Route("POST", "/asyncrl/v1/episodes/ID/reward", REWARD, too_large=MAX_BODY_BYTES),
    Route("POST", "/asyncrl/v1/episodes/ID/finish", FINISH, too_large=MAX_BODY_BYTES),
    Route("POST", "/asyncrl/v1/keys", {}),
    Route("DELETE", "/asyncrl/v1/keys/ID"),
    Route("GET", "/asyncrl/v1/status"),
    Route("GET", "/metrics"),
    Route("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, (fuzzing.JSON,)),
    Route("GET", "/v1/models"),
    Route("POST", "/asyncrl/v1/reward", {"reward": 0.5}, (fuzzing.JSON,)),
]
STRANGERS = ["trainer", "peer", "engine", "env", "guest", "old_policy", "openenv", "gateway"]


@pytest.fixture
def service(make_gateway, tmp_path):
    gateway = make_gateway(lambda prompt: "ok")
    app = AppThread(gateway.app, tmp_path)
    episodes = gateway.episodes

    def state():
        counters = {name: episodes.counters[name] for name in ("opened", "ended", "calls")}
        keys = len(episodes._keys), len(episodes._by_key), len(episodes._by_reward_key)
        each = [
            (
                one.id,
                one.reward,
                dict(one.components),
                one.success,
                one.result is not None,
                len(one.tree.calls),
            )
            for one in episodes._by_id.values()
        ]
        return counters, keys, sorted(each), len(gateway.engine.requests)

    def post(path, body, key=""):
        headers = JSON | ({"Authorization": f"Bearer {key}"} if key else {})
        status, answer = fuzzed.ask("POST", path, json.dumps(body).encode(), list(headers.items()))
        assert status == 200, answer
        return json.loads(answer)

    def works():
        opened = post("/asyncrl/v1/episodes", {"task_id": "right"})
        post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, opened["key"])
        ended = post(f"/asyncrl/v1/episodes/{opened['id']}/finish", {"reward": 1.0})
        assert [one["reward"] for one in ended["trajectories"]] == [1.0]

    fuzzed = Fuzzed(app.url, "gateway", ROUTES, state, works)
    yield fuzzed, episodes, post
    app.close()


@pytest.mark.parametrize(
    "body", [{"status": "failed", "failure": "agent", "error": "\ud83d"}, {"components": {"\ud83d": 1.0}}]
)
def test_an_end_with_half_a_character_is_refused_and_the_episode_stays_open(service, body):
    fuzzed, episodes, post = service
    opened = post("/asyncrl/v1/episodes", {"task_id": "t"})
    path = f"/asyncrl/v1/episodes/{opened['id']}/finish"
    assert fuzzed.send(Route("POST", path, body), json.dumps(body).encode()) == 400
    assert episodes.by_id(opened["id"]).result is None
    assert post(path, {"reward": 1.0})["summary"]["reward"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "body"), [("reward", REWARD), ("finish", FINISH)])
def test_no_word_about_an_episode_breaks_the_gateway_and_none_that_is_refused_counts(service, name, body):
    fuzzed, _, post = service
    opened = post("/asyncrl/v1/episodes", {"task_id": "t"})
    route = Route("POST", f"/asyncrl/v1/episodes/{opened['id']}/{name}", body)
    for kind in route.kinds:
        for raw in fuzzing.MADE[kind](body):
            if name == "finish" and fuzzed.state()[2][0][4]:
                opened = post("/asyncrl/v1/episodes", {"task_id": "t"})
                route = Route("POST", f"/asyncrl/v1/episodes/{opened['id']}/{name}", body)
            fuzzed.send(route, raw, kind)
    fuzzed.works()


@pytest.mark.slow
def test_no_settings_of_an_episode_break_the_gateway(service):
    fuzzed, episodes, _ = service
    for kind in (fuzzing.JSON, fuzzing.MSGPACK):
        for raw in fuzzing.MADE[kind](SPEC):
            if fuzzed.send(ROUTES[0], raw, kind) == 200:
                episodes.drop(next(iter(episodes._by_id.values())))
    assert fuzzed.seen[ROUTES[0].path, 400] > 300
    fuzzed.works()


def test_other_ids_types_sizes_and_methods_are_refused(service):
    fuzzed, _, _ = service
    fuzzing.fuzz_paths(fuzzed)
    fuzzing.fuzz_framing(fuzzed)


def test_nobody_without_the_right_token_opens_rewards_or_ends_an_episode(service):
    fuzzing.fuzz_tokens(service[0], STRANGERS)


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service[0])
