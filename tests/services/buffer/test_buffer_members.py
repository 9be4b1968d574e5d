"""Who takes part in a job: described by the launcher, joined by others, forgotten when silent."""

import asyncio

import pytest

from asyncrl.cli import main
from asyncrl.config import parse_config
from asyncrl.credentials import join_credentials, read_credentials
from asyncrl.endpoint import announce
from asyncrl.env.host import EnvHost
from asyncrl.errors import ConfigError, ConflictError, InfrastructureError, InputError, UnavailableError
from asyncrl.services.buffer.client import Addresses, BufferClient
from asyncrl.services.buffer.members import MEMBER_S, Describe, Members
from asyncrl.services.env.client import EnvClient
from asyncrl.services.env.service import create_env_app
from asyncrl.services.joining import Membership, fetch_job
from asyncrl.types import Task
from tests.app_thread import AppThread
from tests.credentials import RUN, TOKEN
from tests.waiting import wait_until

JOB = {
    "config": parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}}).model_dump(mode="json"),
    "model": "m",
    "weights_dir": "/w",
    "engines": ["http://127.0.0.1:1"],
    "envs": ["http://127.0.0.1:2"],
}


def ask(service, *calls, token=None):
    async def run():
        client = BufferClient(service.url, token)
        try:
            return [await call(client) for call in calls][-1]
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_job_is_handed_out_once_it_has_been_described(service):
    with pytest.raises(UnavailableError, match="no job has been described here"):
        ask(service, lambda c: c.job())
    ask(service, lambda c: c.describe(JOB))
    job, credentials = fetch_job(service.url, RUN.issue("guest").bearer("buffer"), "rollout", "host-7")
    assert str(credentials.caller).startswith("worker/host-7-")
    assert job.config.env.name == "gridworld"
    assert (job.model, job.weights_dir, job.engines, job.envs) == (
        "m", "/w", ["http://127.0.0.1:1"], ["http://127.0.0.1:2"],
    )  # fmt: skip


def test_an_engine_that_joins_is_told_the_buffers_of_the_policies_it_serves_too(service):
    own = {"agents": ["b"], "engine": {"count": 1}}
    recipe = {"lora": {"rank": 4}, "policies": {"shared": {"agents": ["a"]}, "own": own}}
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}} | recipe)
    policies = [
        "shared=http://127.0.0.1:5,http://127.0.0.1:1/policies/shared",
        "own=http://127.0.0.1:6,http://127.0.0.1:7",
    ]
    described = JOB | {"config": config.model_dump(mode="json"), "policies": policies}
    ask(service, lambda c: c.describe(described))
    assert fetch_job(service.url, TOKEN, "engine", "")[0].co_served_policies == {
        "shared": "http://127.0.0.1:5"
    }


def test_an_environment_service_may_not_join_a_run_whose_sessions_are_in_its_workers(
    service, monkeypatch, capsys
):
    monkeypatch.setenv("ASYNCRL_TOKEN", TOKEN)
    ask(service, lambda c: c.describe(JOB | {"envs": []}))
    assert main(["serve", "env", "--join", service.url]) == 2
    assert "start it with env.services=1, so that services can join" in capsys.readouterr().err


def test_members_join_and_leave(service):
    joined = ask(
        service,
        lambda c: c.describe(JOB),
        lambda c: c.join("engine", "http://127.0.0.1:3"),
        lambda c: c.join("env", "http://127.0.0.1:4"),
        lambda c: c.join("engine", "http://127.0.0.1:3"),
        lambda c: c.job(),
    )["joined"]
    assert joined == {"engine": ["http://127.0.0.1:3"], "env": ["http://127.0.0.1:4"]}
    left = ask(service, lambda c: c.leave("http://127.0.0.1:3"), lambda c: c.job())["joined"]
    assert left == {"engine": [], "env": ["http://127.0.0.1:4"]}


@pytest.mark.parametrize(("role", "url"), [("trainer", "http://x:1"), ("env", "ftp://x:1"), ("env", "")])
def test_what_cannot_take_part_is_refused(service, role, url):
    with pytest.raises(InputError):
        ask(service, lambda c: c.join(role, url))


def test_a_member_that_says_nothing_is_forgotten():
    members = Members(start=0.0)
    members.described = Describe(**JOB)
    members.join("engine", "http://a:1", RUN.caller, now=0.0)
    members.join("env", "http://b:1", RUN.caller, now=10.0)
    assert members.job(MEMBER_S, RUN.caller, RUN)["joined"]["engine"] == ["http://a:1"]
    assert members.job(MEMBER_S + 1, RUN.caller, RUN)["joined"] == {"engine": [], "env": ["http://b:1"]}


def test_a_buffer_that_has_just_started_says_that_it_may_not_know_everybody():
    members = Members(start=100.0)
    members.described = Describe(**JOB)
    members.join("engine", "http://b:1", RUN.caller, now=100.0)
    members.leave("http://b:1", RUN.caller)
    early, late = (members.job(at, RUN.caller, RUN) for at in (101.0, 101.0 + MEMBER_S))
    assert (early["settled"], late["settled"]) == (False, True)
    assert early["left"] == ["http://b:1"]
    members.join("engine", "http://b:1", RUN.caller, now=102.0)
    assert members.job(103.0, RUN.caller, RUN)["left"] == []


@pytest.mark.parametrize(("policy", "path"), [("main", ""), ("helpers", "/policies/helpers")])
def test_a_member_joins_once_it_has_an_address_and_leaves_at_its_end(service, tmp_path, policy, path):
    ask(service, lambda c: c.describe(JOB))
    ready = tmp_path / "address.json"
    member = Membership(service.url, RUN.issue("env", "a").bearer("buffer"), "env", ready, policy)
    member.start()
    announce(ready, "http://127.0.0.1:9", pid=1)

    def joined():
        return ask(service, lambda c: c.job())["joined"]["env"]

    assert wait_until(joined, limit_s=60) == [f"http://127.0.0.1:9{path}"]
    member.leave()
    assert joined() == []


def test_a_member_speaks_for_itself_only(service):
    ask(service, lambda c: c.describe(JOB))
    guest = join_credentials(RUN, ["engine", "env"]).bearer("buffer")
    text_one = ask(service, lambda c: c.enroll("engine"), token=guest)
    text_two = ask(service, lambda c: c.enroll("env"), token=guest)
    one, two = (read_credentials(text).bearer("buffer") for text in (text_one, text_two))
    ask(service, lambda c: c.join("engine", "http://127.0.0.1:3"), token=one)
    with pytest.raises(ConflictError, match="joined by another"):
        ask(service, lambda c: c.leave("http://127.0.0.1:3"), token=two)
    with pytest.raises(ConfigError, match="engine"):
        ask(service, lambda c: c.join("engine", "http://127.0.0.1:4"), token=two)
    with pytest.raises(ConfigError, match="not for guest"):
        ask(service, lambda c: c.join("engine", "http://127.0.0.1:4"), token=guest)
    for token in (one, guest):
        with pytest.raises(ConfigError, match="/v1/job: not for"):
            ask(service, lambda c: c.describe(JOB | {"model": "/forged"}), token=token)
    with pytest.raises(ConfigError, match="not for env"):
        ask(service, lambda c: c.enroll("env"), token=two)
    assert ask(service, lambda c: c.job())["joined"] == {"engine": ["http://127.0.0.1:3"], "env": []}


def test_workers_that_join_get_names_of_their_own(service):
    names = [
        read_credentials(ask(service, lambda c: c.enroll("rollout", "rollout-0"))).caller.name
        for _ in range(2)
    ]
    assert len({*names, "rollout-0"}) == 3


def test_a_join_token_is_good_for_its_roles_only(service):
    guest = join_credentials(RUN).bearer("buffer")
    assert (
        read_credentials(ask(service, lambda c: c.enroll("rollout", "w"), token=guest)).caller.role
        == "worker"
    )
    for role in ("engine", "env"):
        with pytest.raises(
            ConfigError, match=f"not for '{role}'; whoever has the run makes one .* --role {role}"
        ):
            ask(service, lambda c, role=role: c.enroll(role), token=guest)


def test_those_who_call_a_member_are_told_a_token_that_it_and_nobody_else_takes(service):
    url, own = "http://127.0.0.1:3", JOB["engines"][0]
    ask(service, lambda c: c.describe(JOB))
    member = read_credentials(ask(service, lambda c: c.enroll("engine")))
    for address in (url, own):
        ask(service, lambda c, address=address: c.join("engine", address), token=member.bearer("buffer"))
    worker = RUN.issue("worker", "w")
    tokens = ask(service, lambda c: c.job(), token=worker.bearer("buffer"))["tokens"]
    assert list(tokens) == [url], "the address of the run's own engine is not a member's"
    header = f"Bearer {tokens[url]}".encode()
    assert member.access("engine").caller(header) == worker.caller
    assert RUN.access("engine").caller(header) is None
    for role in ("env", "guest"):
        caller = RUN.issue(role).bearer("buffer")
        assert ask(service, lambda c: c.job(), token=caller)["tokens"] == {}


def test_a_process_follows_a_member_that_another_one_has_replaced():
    addresses = Addresses("engine", ["http://a:1"])

    def job(joined, tokens, settled=True):
        described = {
            "joined": {"engine": joined},
            "tokens": tokens,
            "settled": settled,
            "left": [],
            "moved": {},
        }
        return addresses.update(described)

    assert job(["http://b:1"], {"http://b:1": "one"}) == ({"http://b:1"}, set())
    assert job([], {}, settled=False) == (set(), set())
    assert addresses.token("http://b:1") == "one"
    assert job(["http://b:1"], {"http://b:1": "two"}) == ({"http://b:1"}, set())
    assert (addresses.token("http://b:1"), addresses.token("http://a:1")) == ("two", None)
    assert job([], {}) == (set(), {"http://b:1"})


def test_sessions_are_opened_at_an_environment_service_that_joined_with_its_own_token_alone(
    service, tmp_path
):
    ask(service, lambda c: c.describe(JOB))
    member = read_credentials(ask(service, lambda c: c.enroll("env")))
    joined = AppThread(
        create_env_app(EnvHost(served={"gridworld": {}}), member.access("env")), tmp_path, "joined"
    )
    worker = RUN.issue("worker", "w")
    try:
        ask(service, lambda c: c.join("env", joined.url), token=member.bearer("buffer"))
        addresses = Addresses("env", ["http://127.0.0.1:2"])
        new, _ = addresses.update(ask(service, lambda c: c.job(), token=worker.bearer("buffer")))

        async def played(token):
            envs = EnvClient([joined.url], token or "", retry_s=1.0)
            try:
                session = await envs.open(Task("t", "gridworld", 2), {})
                await session.close()
                return session.messages[0]["role"]
            finally:
                await envs.close()

        assert new == {joined.url}
        assert asyncio.run(played(addresses.token(joined.url))) in ("system", "user")
        with pytest.raises(InfrastructureError):
            asyncio.run(played(worker.bearer("env")))
    finally:
        joined.close()
