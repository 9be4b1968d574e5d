"""Those who use a job's members keep them through a buffer that is away or has just started."""

import asyncio
from functools import partial

import pytest

from asyncrl.config import parse_config
from asyncrl.services.buffer.client import BufferClient, members_of
from asyncrl.services.rollout.service import PolicyAddresses, RolloutService
from asyncrl.services.trainer.publisher import SyncFilePublisher
from asyncrl.weights.publish import FilePublisher
from tests.buffer.serving import ThreadService
from tests.credentials import RUN
from tests.services.buffer.test_buffer_members import JOB

OWN, GUEST, ENV, GUEST_ENV, MOVED, MOVED_ENV = (f"http://127.0.0.1:{port}" for port in (1, 3, 2, 4, 5, 6))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (None, {"a", "b"}),
        ({"joined": {"engine": ["c"]}, "settled": True, "left": []}, {"c"}),
        ({"joined": {"engine": ["c"]}, "settled": False, "left": []}, {"a", "b", "c"}),
        ({"joined": {"engine": ["c"]}, "settled": False, "left": ["a"]}, {"b", "c"}),
    ],
)
def test_only_what_is_known_to_have_left_is_let_go(job, expected):
    assert members_of(job, "engine", ["a", "b"]) == expected


@pytest.fixture
def buffers(tmp_path):
    """A buffer, and what it is after it was started again: on a port of its own here."""
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made.append(ThreadService(tmp_path / name))
    yield made
    for one in made:
        one.close()


def worker(tiny_model):
    config = parse_config({"model": {"path": tiny_model}, "env": {"name": "gridworld"}})
    return RolloutService(config, tiny_model, [OWN], [ENV], "", RUN, "w")


def test_a_worker_keeps_members_that_a_restarted_buffer_does_not_know_yet_and_follows_what_has_moved(
    buffers, tiny_model
):
    async def scenario():
        service = worker(tiny_model)
        first, second = (BufferClient(buffer.url) for buffer in buffers)
        seen = []

        async def follow(buffer):
            await service._follow("main", buffer, service.router)
            seen.append(({e.url for e in service.router.engines}, set(service.envs.urls)))

        await follow(first)
        await first.describe(JOB)
        await first.join("engine", GUEST)
        await first.join("env", GUEST_ENV)
        await follow(first)
        await follow(second)
        await second.describe(JOB)
        await follow(second)
        await second.join("engine", GUEST)
        await second.leave(GUEST)
        await follow(second)
        await second.describe(JOB | {"moved": {OWN: MOVED, ENV: MOVED_ENV}})
        await follow(second)
        for closing in (first, second, service):
            await closing.close()
        return seen

    everybody = ({OWN, GUEST}, {ENV, GUEST_ENV})
    assert asyncio.run(scenario()) == [
        ({OWN}, {ENV}),
        everybody,
        everybody,
        everybody,
        ({OWN}, {ENV, GUEST_ENV}),
        ({MOVED}, {MOVED_ENV, GUEST_ENV}),
    ]


def test_an_engine_that_changes_over_leaves_the_main_policys_router_and_its_successor_joins_the_others(
    buffers, tiny_model
):
    """The successor may get the address that the engine had before."""
    config = parse_config(
        {
            "model": {"path": tiny_model},
            "env": {"name": "gridworld"},
            "policies": {"b": {"agents": ["b"]}},
        }
    )

    async def scenario():
        clients = [BufferClient(buffer.url) for buffer in buffers]
        policies = {"b": PolicyAddresses([MOVED])}
        service = RolloutService(config, tiny_model, [OWN, GUEST], [ENV], "", RUN, "w", policies)
        routers = {"main": service.router, "b": service.policies["b"].router}
        seen = []

        async def follow(**changes):
            for (name, router), client in zip(routers.items(), clients, strict=True):
                await client.describe(JOB | changes.get(name or "main", {}))
                await service._follow(name, client, router)
            seen.append([{engine.url for engine in router.engines} for router in routers.values()])

        await follow()
        left = {"retired": [GUEST]}
        await follow(main=left)
        await follow(main=left, b={"added": {"engine": [GUEST]}})
        await follow(main={"added": {"engine": [MOVED_ENV]}} | left, b={"retired": [GUEST]})
        for closing in (*clients, service):
            await closing.close()
        return seen

    assert asyncio.run(scenario()) == [
        [{OWN, GUEST}, {MOVED}],
        [{OWN}, {MOVED}],
        [{OWN}, {MOVED, GUEST}],
        [{OWN, MOVED_ENV}, {MOVED}],
    ]


def test_a_trainer_publishes_to_engines_where_they_are_until_they_are_known_to_have_left(tmp_path):
    known = {"left": [], "moved": {}, "tokens": {}}
    jobs = [known | {"joined": {"engine": [GUEST]}, "settled": True}, None]
    jobs += [known | {"joined": {"engine": []}, "settled": settled} for settled in (False, True)]
    jobs += [jobs[-1] | {"moved": {OWN: MOVED}}, None]
    jobs += [jobs[3] | {"added": {"engine": [GUEST]}, "retired": [OWN]}, None]
    publisher = SyncFilePublisher([OWN], "", 0, partial(FilePublisher, tmp_path), lambda: said[-1])
    seen, said = [], [None]
    try:
        for job in jobs:
            said.append(job)
            publisher._follow_members()
            seen.append([engine.url for engine in publisher.publisher.engines])
    finally:
        publisher.close()
    assert seen == [[OWN, GUEST], [OWN, GUEST], [OWN, GUEST], [OWN], [MOVED], [MOVED], [GUEST], [GUEST]]
