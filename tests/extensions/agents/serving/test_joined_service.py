"""The routes of a gateway that has joined a run, over a real buffer; no engine is called."""

import argparse
import asyncio
import time

import httpx
import pytest

from asyncrl.cli import build_parser
from asyncrl.commands.serve import roles
from asyncrl.config import parse_config
from asyncrl.credentials import Caller, read_credentials
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.gateway.offers import Offers
from asyncrl.extensions.agents.serving.client import GatewayClient
from asyncrl.extensions.agents.serving.joined_service import create_joined_gateway_app, offering
from asyncrl.launch.checks.check import check_evaluation
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.command import Address
from asyncrl.services.rollout.service import RolloutService
from asyncrl.types import FailureClass, Status, Task
from tests.app_thread import AppThread
from tests.buffer.serving import ThreadService
from tests.credentials import AUTHORIZED, RUN
from tests.waiting import wait_until

CALLERS = read_credentials("a-token-of-those-who-ask")
NOWHERE = "http://127.0.0.1:9"
NEXT = "/asyncrl/v1/episodes/next"


@pytest.fixture
def buffer(tmp_path):
    (tmp_path / "buffer").mkdir()
    service = ThreadService(tmp_path / "buffer", lease_s=60.0)
    yield service
    service.close()


@pytest.fixture
def start(buffer, tiny_model, tmp_path):
    """`start()` returns a gateway that has joined the run of `buffer`, and a client of its owner's routes."""
    started = []

    def start():
        config = parse_config(
            {
                "model": {"path": tiny_model},
                "env": {"name": "agent", "config": {"callable": "not_on_this_machine.py:play"}},
                "rollout": {"group_size": 2},
            }
        )
        enrolled = read_credentials(ask(buffer, lambda client: client.enroll("gateway", "outside")))
        service = RolloutService(
            config, tiny_model, [NOWHERE], (), buffer.url, enrolled, "", make_players=offering(Offers(60.0))
        )
        app = create_joined_gateway_app(service, CALLERS.access("gateway"))
        gateway = AppThread(app, tmp_path, "gateway")
        service.players.local.url = gateway.url
        started.append(gateway)
        headers = {"Authorization": f"Bearer {CALLERS.text}"}
        return gateway, httpx.Client(base_url=gateway.url, headers=headers, timeout=60)

    yield start
    for gateway in started:
        if gateway.thread.is_alive():
            gateway.close()


def ask(buffer, call):
    async def run():
        client = BufferClient(buffer.url)
        try:
            return await call(client)
        finally:
            await client.close()

    return asyncio.run(run())


def next_of(http):
    return http.post(NEXT, json={"wait_s": 30}).json()["episode"]


def test_a_group_is_leased_for_those_who_ask_and_for_nobody_else(buffer, start):
    ask(buffer, lambda client: client.add_tasks([Task(f"t{n}", "agent", n) for n in range(3)]))
    gateway, http = start()
    assert http.get("/asyncrl/v1/status").json()["running"] == []
    first, second = next_of(http), next_of(http)
    assert [(one["task"]["id"], one["task"]["episode_index"]) for one in (first, second)] == [
        ("t0", 0),
        ("t0", 1),
    ]
    assert first["url"] == gateway.url
    assert len({first["key"], second["key"], first["reward_key"], first["id"]}) == 4
    status = http.get("/asyncrl/v1/status").json()
    assert (status["running"], status["played"], status["waiting"]) == (["t0"], 2, 0)
    assert next_of(http)["task"]["id"] == "t1"
    assert http.get("/asyncrl/v1/status").json()["name"].startswith("outside-")
    http.close()
    gateway.close()
    counts = buffer.ledger.stats()
    assert (counts["in_flight"], counts["pending"]) == (0, 3), "a gateway that ends returns its leases"


def test_without_a_task_nobody_is_given_an_episode(start):
    _, http = start()
    assert http.post(NEXT, json={"wait_s": 0.2}).json() == {"episode": None}


def test_an_episode_that_is_given_up_or_reported_as_lost_is_offered_again_and_its_key_ends(buffer, start):
    ask(buffer, lambda client: client.add_tasks([Task("t0", "agent", 0)]))
    gateway, http = start()
    first, _ = next_of(http), next_of(http)
    path = f"/asyncrl/v1/episodes/{first['id']}"
    assert http.get(path).json()["task_id"] == "t0"
    refused = http.post(f"{path}/finish", json={"reward": 1.0})
    assert (
        refused.status_code == 400
        and "no call of this episode was answered" in refused.json()["error"]["message"]
    )
    assert http.delete(path).json() == {}
    again = next_of(http)
    assert (again["task"]["episode_index"], again["id"] == first["id"]) == (0, False)
    assert http.get(path).status_code == 404
    key = {"Authorization": f"Bearer {first['key']}"}
    assert http.post("/v1/chat/completions", json={}, headers=key).status_code == 401

    async def lose():
        client = GatewayClient(gateway.url, CALLERS.text)
        try:
            await client.finish(
                again["id"], status=Status.FAILED, failure=FailureClass.INFRASTRUCTURE, error="no sandbox"
            )
            return await client.next(30.0)
        finally:
            await client.close()

    task, episode = asyncio.run(lose())
    assert (task["episode_index"], episode.url) == (0, gateway.url)


def test_only_the_gateways_own_token_asks_for_episodes_and_an_episodes_key_does_not(buffer, start):
    ask(buffer, lambda client: client.add_tasks([Task("t0", "agent", 0)]))
    _, http = start()
    told = next_of(http)
    for headers in (
        AUTHORIZED,
        {"Authorization": f"Bearer {told['key']}"},
        {"Authorization": f"Bearer {RUN.issue('worker', 'w').bearer('gateway')}"},
    ):
        assert http.post(NEXT, json={}, headers=headers).status_code == 401
    for body, words in (({"wait_s": 61}, "next.wait_s"), ({"wait": 1}, "next.wait: Extra inputs")):
        answer = http.post(NEXT, json=body)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_who_hangs_up_while_waiting_is_given_no_episode(buffer, start):
    _, http = start()
    with pytest.raises(httpx.ReadTimeout):
        http.post(NEXT, json={"wait_s": 30}, timeout=0.5)
    time.sleep(0.5)
    ask(buffer, lambda client: client.add_tasks([Task("t0", "agent", 0)]))
    told = next_of(http)
    assert told["task"]["episode_index"] == 0
    assert wait_until(lambda: http.get("/asyncrl/v1/status").json()["played"]) == 1


def test_the_credentials_of_a_gateway_call_buffer_and_engines_and_serve_nobody(buffer):
    enrolled = read_credentials(ask(buffer, lambda client: client.enroll("gateway")))
    assert enrolled.caller.name.startswith("gateway-")
    assert set(enrolled.bearers) == {"buffer", "engine"}
    assert (enrolled.keys, enrolled.run_token) == ({}, "")
    for kind in ("buffer", "engine"):
        header = f"Bearer {enrolled.bearer(kind)}".encode()
        assert RUN.access(kind).caller(header) == Caller("worker", enrolled.caller.name)


def test_a_runs_own_workers_lease_nothing_where_its_agents_ask_for_their_episodes(buffer, tiny_model):
    async def limits():
        found = []
        for agent in ({"offered": True}, {"callable": "json:dumps"}):
            config = parse_config(
                {
                    "model": {"path": tiny_model},
                    "env": {"name": "agent", "config": agent},
                    "eval": {"tasks": 0},
                }
            )
            service = RolloutService(config, tiny_model, [NOWHERE], (), buffer.url, RUN, "w")
            found.append(service.loop.limit() > 0)
            await service.close()
        return found

    assert asyncio.run(limits()) == [False, True]


def test_evaluations_of_agents_that_no_worker_can_start_are_refused(tiny_model):
    recipe = {"model": {"path": tiny_model}, "env": {"name": "agent", "config": {"offered": True}}}
    with pytest.raises(ConfigError, match=r"eval\.tasks must be 0 with env\.config\.offered=true"):
        parse_config(recipe | {"eval": {"tasks": 5}})
    config = parse_config(recipe | {"eval": {"tasks": 0}})
    with pytest.raises(ConfigError, match="to evaluate, name an agent that a worker can start"):
        check_evaluation(config)


def test_a_run_whose_episodes_no_agent_plays_is_refused(tiny_model):
    config = parse_config({"model": {"path": tiny_model}, "env": {"name": "gridworld"}})
    args = argparse.Namespace(join="http://127.0.0.1:9", agent_token_file="")
    with pytest.raises(
        ConfigError, match="played by the environment 'gridworld'; agents play those of a run with"
    ):
        roles()["gateway"].start(args, config, Address("127.0.0.1", 0, RUN, None))


def test_a_gateway_on_its_own_has_no_token_of_those_who_ask(tiny_model):
    config = parse_config({"model": {"path": tiny_model}, "env": {"name": "gridworld"}})
    args = argparse.Namespace(join="", agent_token_file="mine")
    with pytest.raises(ConfigError, match="--agent-token-file: is for --join"):
        roles()["gateway"].start(args, config, Address("127.0.0.1", 0, RUN, None))


@pytest.mark.parametrize(
    ("role", "member", "of_others"),
    [("gateway", False, True), ("rollout", False, True), ("env", True, True), ("engine", True, False)],
)
def test_a_gateway_that_joins_is_no_member_and_keeps_its_token_from_others_as_a_worker_does(
    role, member, of_others
):
    args = build_parser().parse_args(["serve", role, "--join", NOWHERE])
    assert (args.member, args.of_others) == (member, of_others)
