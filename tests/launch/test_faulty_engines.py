"""Engines that sampled from no policy of the run: started again, left out, or the reason for the end of the run."""

import asyncio

import pytest

import asyncrl.launch.roles.faulty_engines as faulty_engines
from asyncrl.config import parse_config
from asyncrl.errors import StopError
from asyncrl.launch.processes.health_probes import HttpProbe
from asyncrl.launch.roles.faulty_engines import FaultyEngines
from asyncrl.launch.roles.roles import Roles
from asyncrl.services.buffer.client import BufferClient
from tests.buffer.factories import group, tasks
from tests.buffer.serving import ThreadService
from tests.credentials import TOKEN

START_S = 60.0
WHY = "differ by 0.5 nats"


class Run:
    """A run's buffer, and its engines, for which environment services stand: they start as soon and are supervised
    alike."""

    def __init__(self, process_group, folder, engines):
        config = parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "policies": {"b": {"agents": ["b"]}},
            }
        )
        self.roles = Roles(config, folder, "m", folder / "weights", process_group=process_group)
        started = [process_group.start(f"engine-{number}", ["serve", "env"]) for number in range(engines)]
        for process in started:
            process_group.wait_ready(process, START_S)
            self.roles.main.engines.append(process)
            self.roles.supervisor.watch(process, HttpProbe(process, "/healthz"), START_S)
        self.service = ThreadService(folder, groups_per_step=1, max_staleness=0)
        self.ledger = self.service.ledger
        self.ledger.add_tasks(tasks(9))
        self.faulty = FaultyEngines(self.roles)

    def spoil(self, url):
        """Have the worker's next batch rejected for the fault of the engine at `url`."""
        lease = self.ledger.lease("w")
        self.ledger.put(group(lease))
        self.ledger.take(0)
        assert self.ledger.reject(0, [lease.id], WHY, {url: [lease.id]}) == ["w"]

    def handle(self):
        """Deal with the engines at fault; return what is said, and whether the worker is still quarantined."""

        async def once():
            client = BufferClient(self.service.url, TOKEN)
            try:
                return await self.faulty.handle(
                    self.roles.main, client, (await client.status())["faulty_engines"]
                )
            finally:
                await client.close()

        said = asyncio.run(once())
        return said, self.ledger.stats()["quarantined"] == ["w"]

    def supervise_until(self, condition):
        async def work():
            async with asyncio.timeout(START_S):
                while not condition():
                    await asyncio.sleep(0.05)

        asyncio.run(self.roles.supervisor.run(work()))


@pytest.fixture
def run(process_group, tmp_path):
    made = []

    def make(engines):
        made.append(Run(process_group, tmp_path, engines))
        return made[-1]

    yield make
    for one in made:
        one.service.close()


@pytest.mark.slow
def test_a_faulty_engine_is_started_again_once_and_left_out_where_that_does_not_help(run, tmp_path):
    found = run(engines=2)
    first, second = found.roles.main.engines
    found.spoil(f"{second.url}/policies/b")
    pid = second.popen.pid
    assert found.handle() == (
        [f"engine-1 sampled other tokens than its weights would, and is started again: {WHY}"], False
    )  # fmt: skip
    found.supervise_until(lambda: found.roles.supervisor.serves(second))
    assert second.popen.pid != pid
    assert found.roles.supervisor.restarts() == {"engine-1": 1}
    assert "sampled other tokens than its weights would" in (tmp_path / "restarts.jsonl").read_text()
    assert found.handle() == ([], False)

    found.spoil(second.url)
    said, quarantined = found.handle()
    assert said == [
        "engine-1 sampled other tokens than its weights would, also after it was started again; the run goes on "
        f"without it: {WHY}"
    ]
    assert not quarantined
    assert not second.alive()
    assert (found.roles.main.engines, found.roles.job()["retired"]) == ([first], [second.url])

    found.spoil(first.url)
    found.handle()
    found.spoil(first.url)
    with pytest.raises(
        StopError, match=r"engine-0 .*, also after it was started again, and the run has no other one"
    ):
        found.handle()


def test_a_further_policy_goes_on_without_its_faulty_engine_and_one_that_changes_over_is_no_guest(
    run, monkeypatch
):
    found = run(engines=2)
    found.roles.add_policy("b", found.roles.config, found.roles.folder, "m")
    policy = found.roles.policies["b"]
    policy.engines, found.roles.main.engines = found.roles.main.engines, []
    first, second = policy.engines

    async def handle():
        client = BufferClient(found.service.url, TOKEN)
        try:
            return await found.faulty.handle(policy, client, (await client.status())["faulty_engines"])
        finally:
            await client.close()

    for _ in range(2):
        found.spoil(second.url)
        said = asyncio.run(handle())
    assert said == [
        "engine-1 sampled other tokens than its weights would, also after it was started again; the run goes on "
        f"without it: {WHY}"
    ]
    assert (policy.engines, policy.job()["retired"], found.roles.main.retired) == ([first], [second.url], [])

    policy.retire_engine(first)
    found.spoil(first.url)
    assert asyncio.run(handle()) == []
    assert found.ledger.stats()["quarantined"] == ["w"]
    monkeypatch.setattr(faulty_engines, "HEARD_S", 0.0)
    assert asyncio.run(handle()) == []
    assert found.ledger.stats()["quarantined"] == []


def test_a_faulty_engine_that_has_joined_is_left_alone_and_its_users_return_when_all_have_heard(
    run, monkeypatch
):
    found = run(engines=1)
    joined = "http://10.0.0.9:1"
    found.spoil(joined)
    assert found.handle() == (
        [f"the engine at {joined}, which has joined, sampled other tokens than its weights would, and takes part no "
         f"longer: {WHY}"], True
    )  # fmt: skip
    assert found.roles.job()["retired"] == [joined]
    assert found.handle() == ([], True)
    monkeypatch.setattr(faulty_engines, "HEARD_S", 0.0)
    assert found.handle() == ([], False)
