"""The ledger's promises through the client, the service and a real socket, with the service killed in between."""

import asyncio
import contextlib
import dataclasses
import socket
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from asyncrl.buffer.body_files import LARGE_BYTES
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import (
    ConfigError,
    ConflictError,
    InputError,
    QuarantineError,
    StaleError,
    StorageError,
    UnavailableError,
)
from asyncrl.extensions.curriculum.curricula import factory
from asyncrl.extensions.curriculum.lease_hook import Proposals
from asyncrl.extensions.curriculum.tasks import add_pool
from asyncrl.services.buffer import client as client_module
from asyncrl.services.buffer.client import BufferClient, BufferClientSync
from asyncrl.services.http.client import HttpClient
from asyncrl.types import FailureClass
from tests.buffer.factories import group, tasks
from tests.buffer.serving import ProcessService, ThreadService
from tests.credentials import RUN, TOKEN
from tests.waiting import START_S

LARGE = LARGE_BYTES // 26 + 100
"""Tokens of each of two trajectories that make a body large."""


@pytest.fixture
def curated(tmp_path):
    served = ThreadService(tmp_path, [partial(Proposals, make=factory("vade", {}, group_size=2, seed=0))])
    yield served
    served.close()


def with_client(service, act, token=None):
    async def run():
        client = BufferClient(service.url, token)
        try:
            async with asyncio.timeout(START_S):
                return await act(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_worker_that_waits_is_leased_what_the_curriculum_proposes(curated):
    async def act(client):
        waiting = asyncio.create_task(client.lease("w", 20.0))
        assert await add_pool(client, tasks(3), 5) == 3
        assert await add_pool(client, tasks(3), 5) == 0
        lease = await waiting
        number, _, name = lease.task.id.partition("-")
        assert (number, lease.task.seed) == ("00000000", int(name[1:]))
        assert (await client.put(group(lease))).outcome == "ready"
        second = await client.lease("w", 1.0)
        assert (await client.put(group(second))).outcome == "ready"
        assert len(await client.take(0, 1.0)) == 2
        await client.commit(1)
        status = await client.status()
        assert (status["curriculum_proposals"], status["curriculum_brier"]) == (2, 0.0)
        with pytest.raises(ConflictError, match="has 3 tasks, and these 2 are not the same"):
            await add_pool(client, tasks(2), 5)

    with_client(curated, act)


def test_tasks_are_chosen_among_only_where_there_is_a_curriculum(service):
    with pytest.raises(ConflictError, match="has no curriculum"):
        with_client(service, lambda client: add_pool(client, tasks(3), 0))


def test_a_plan_is_trained_to_its_end(service):
    async def act(client):
        assert await client.add_tasks(tasks(3)) == 3
        await client.close_plan()
        put = {}
        for _ in range(3):
            lease = await client.lease("w", 1.0)
            put[lease.task.id] = group(lease, versions=(0, 0), length=9)
            assert (await client.put(put[lease.task.id])).outcome == "ready"
        first = await client.take(0, 1.0)
        await client.commit(1)
        last = await client.take(1, 1.0)
        await client.commit(2)
        batch = [decode_group(body) for body in [*first, *last]]
        assert [g.task.id for g in batch] == ["t0", "t1", "t2"]
        for taken in batch:
            for left, right in zip(taken.trajectories, put[taken.task.id].trajectories, strict=True):
                np.testing.assert_array_equal(left.behavior_logprobs, right.behavior_logprobs)
        assert await client.take(2, 1.0) == []
        return await client.status()

    status = with_client(service, act)
    assert (status["trained"], status["version"], status["expired"]) == (3, 2, 0)


def test_errors_come_back_as_their_classes(service):
    async def act(client):
        await client.add_tasks(tasks(4))
        for one in [await client.lease("w", 0), await client.lease("w", 0)]:
            await client.put(group(one))
        await client.take(0, 0)
        await client.commit(1)
        one = await client.lease("w", 0)
        with pytest.raises(StaleError, match="must be at least 1"):
            await client.put(group(one, versions=(0,)))
        with pytest.raises(InputError, match="must hold 2 episodes"):
            await client.put(group(one, rewards=(1.0,)))
        await client.release(one.id)
        with pytest.raises(ConflictError, match="has ended"):
            await client.put(group(one))
        with pytest.raises(ConflictError, match="is unknown"):
            await client.renew("17-1-abcd")
        with pytest.raises(ConflictError, match="the committed version is 1"):
            await client.take(5, 0)

    with_client(service, act)


def test_a_disk_that_stays_full_is_told_once_the_time_for_outages_is_over(service):
    async def act(client):
        await client.add_tasks(tasks(2))
        one = await client.lease("w", 0)
        service.ledger._store.execute("PRAGMA max_page_count=8")
        impatient = BufferClient(service.url, retry_s=0.2)
        with pytest.raises(StorageError, match="database or disk is full; nothing was changed"):
            await impatient.put(group(one, length=8_000))
        await impatient.close()
        service.ledger._store.execute("PRAGMA max_page_count=100000")
        return await client.put(group(one, length=8_000))

    assert with_client(service, act).outcome == "ready"


def test_put_many_answers_each_group_for_itself(service):
    async def act(client):
        await client.add_tasks(tasks(4))
        good, bad, gone = [await client.lease("w", 0) for _ in range(3)]
        await client.release(gone.id)
        answers = await client.put_many([group(good), group(bad, rewards=(1.0,)), group(gone)])
        assert answers[0].outcome == "ready"
        assert [type(a) for a in answers[1:]] == [InputError, ConflictError]
        return await client.status()

    status = with_client(service, act)
    assert (status["ready"], status["in_flight"], status["pending"]) == (1, 1, 2)


def test_a_group_that_no_check_has_foreseen_is_refused_and_those_beside_it_are_put(service, monkeypatch):
    """Whatever a group makes the ledger raise, it costs its sender that group and nobody else anything."""
    ledger = service.ledger
    put = ledger._puts.put

    def surprised(one, *rest):
        if one.trajectories[0].info.get("attempts") == 13:
            ledger._store.execute("UPDATE tasks SET reason = 'half done'")
            raise TypeError("unhashable type: 'list'")
        return put(one, *rest)

    monkeypatch.setattr(ledger._puts, "put", surprised)

    async def act(client):
        await client.add_tasks(tasks(4))
        leases = [await client.lease("w", 0) for _ in range(3)]
        groups = [group(lease) for lease in leases]
        odd = dataclasses.replace(groups[1].trajectories[0], info={"attempts": 13})
        groups[1] = dataclasses.replace(groups[1], trajectories=(odd, *groups[1].trajectories[1:]))
        answers = await client.put_many(groups)
        assert [getattr(a, "outcome", type(a)) for a in answers] == ["ready", InputError, "ready"]
        assert "cannot be dealt with: TypeError" in str(answers[1])
        with pytest.raises(InputError, match="cannot be dealt with"):
            await client.put(groups[1])
        return await client.status()

    status = with_client(service, act)
    assert (status["ready"], status["in_flight"]) == (2, 1)
    assert not ledger._store.rows("SELECT 1 FROM tasks WHERE reason = 'half done'")


def test_a_worker_that_goes_on_sending_what_is_no_group_is_quarantined_and_others_are_not(service):
    mallory, honest = (RUN.issue("worker", name).bearer("buffer") for name in ("mallory", "honest"))

    async def plan(client):
        await client.add_tasks(tasks(4))

    async def send(client):
        lease = await client.lease("mallory", 0)
        odd = dataclasses.replace(group(lease).trajectories[0], info={"hint_turns": "x"})
        wrong = dataclasses.replace(group(lease), trajectories=(odd, *group(lease).trajectories[1:]))
        for _ in range(3):
            with pytest.raises(InputError):
                await client.put(wrong)
        for _ in range(2):
            assert (await client.status())["quarantined"] == []
            answers = await client.put_many([wrong, wrong, wrong])
            assert [type(one) for one in answers] == [InputError] * 3
        with pytest.raises(
            QuarantineError, match=r"8 of its groups were refused, the last one since .*hint_turns"
        ):
            await client.lease("mallory", 0)

    async def work(client):
        assert (await client.put(group(await client.lease("honest", 0)))).outcome == "ready"
        return await client.status()

    with_client(service, plan)
    with_client(service, send, token=mallory)
    assert with_client(service, work, token=honest)["quarantined"] == ["mallory"]


def test_waiting_calls_are_answered_by_the_change_they_wait_for(service):
    async def act(client):
        lease = asyncio.ensure_future(client.lease("w", 20.0))
        take = asyncio.ensure_future(client.take(0, 20.0))
        await asyncio.sleep(0.05)
        await client.add_tasks(tasks(2))
        for one in [await lease, await client.lease("w", 20.0)]:
            await client.put(group(one))
        assert len(await take) == 2

    with_client(service, act)


def test_large_groups_go_through_the_buffers_folder_where_it_is_here(service, monkeypatch):
    sent = []
    post = HttpClient.post

    async def counted(self, path, body=None, *rest):
        sent.append((path, len(body) if isinstance(body, bytes) else 0))
        return await post(self, path, body, *rest)

    monkeypatch.setattr(HttpClient, "post", counted)

    async def act(client):
        await client.add_tasks(tasks(4))
        ones = [group(await client.lease("w", 0.0), length=length) for length in (LARGE, 5, LARGE + 9, LARGE)]
        answers = await client.put_many(ones[:2])
        assert [(a.outcome, a.duplicate) for a in answers] == [("ready", False)] * 2
        assert [path for path, _ in sent[-3:]] == ["/v1/reserve", "/v1/put_files", "/v1/put_many"]
        assert await client.take(0, 1.0) == [encode_group(one) for one in ones[:2]]
        await client.commit(1)
        # Once more, over a connection, as from another machine.
        assert (await client.put(ones[2])).outcome == "ready"
        client._folder = ""
        assert (await client.put(ones[2])).duplicate
        assert (await client.put(ones[3])).outcome == "ready"
        assert await client.take(1, 1.0) == [encode_group(one) for one in ones[2:]]
        assert sum(size > LARGE_BYTES for _, size in sent) == 2

    with_client(service, act)


def test_a_group_that_is_not_in_the_file_it_is_said_to_be_in_is_sent(service, monkeypatch):
    async def act(client):
        await client.add_tasks(tasks(2))
        first, second = [group(await client.lease("w", 0.0), length=LARGE) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "write_reserved", lambda folder, number, body: None)
            assert (await client.put(first)).outcome == "ready"
        # Nobody puts a file that it has not reserved, not even once more.
        unreserved = {"files": [{"file": 2**60, "size": 9}, {"file": 0, "size": 9}]}
        assert (await client._http.post("/v1/put_files", unreserved))["results"] == [None, None]
        assert (await client.put(second)).outcome == "ready"
        (path,) = [p for p in Path(client._folder).glob("*.body") if int(p.stem) >= 2**60]
        path.write_bytes(bytes(10))
        # The buffer finds that the group is lost and plans it again.
        assert await client.take(0, 0.0) is None
        status = await client.status()
        assert (status["ready"], status["pending"]) == (1, 1)

    with_client(service, act)


def test_waiting_workers_are_served_in_their_order(service):
    async def act(client):
        calls = []
        for i in range(4):
            calls.append(asyncio.ensure_future(client.lease(f"w{i}", 20.0)))
            await asyncio.sleep(0.05)
        await client.add_tasks(tasks(4))
        return [(await call).task.id for call in calls]

    assert with_client(service, act) == ["t0", "t1", "t2", "t3"]


def test_leases_granted_together_are_answered_only_once_their_transaction_is_committed(service, monkeypatch):
    store = service.ledger._store
    committed, refusals = store.committed, 2

    def refused():
        nonlocal refusals
        if len(store.rows("SELECT 1 FROM tasks WHERE state = 'leased'")) > 1 and refusals:
            refusals -= 1
            raise UnavailableError("the replica is away")
        committed()

    monkeypatch.setattr(store, "committed", refused)

    async def act(client):
        waiting = [asyncio.ensure_future(client.lease(f"w{i}", 20.0)) for i in range(3)]
        while (await client.status())["waiting_for_lease"] < 3:
            await asyncio.sleep(0.02)
        with contextlib.suppress(UnavailableError):
            await client.add_tasks(tasks(6))
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in answers] == 3 * [UnavailableError]
        asked = [client.lease(f"v{i}", 0.0) for i in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    refused_too = with_client(service, act)
    assert any(isinstance(one, UnavailableError) for one in refused_too)
    assert refusals == 0


def test_a_wait_ends_with_its_time_and_says_what_was_awaited(service):
    async def act(client):
        await client.add_tasks(tasks(2))
        one = await client.lease("w", 0.0)
        assert await client.take(0, 0.05) is None
        assert client.awaited == (one.id,)
        await client.lease("w", 0.0)
        assert await client.lease("w", 0.05) is None

    with_client(service, act)


def test_a_worker_that_went_away_while_waiting_gets_no_lease(service):
    async def act(client):
        waiting = asyncio.ensure_future(client.lease("gone", 20.0))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        deadline = time.monotonic() + 10
        while (await client.status())["waiting_for_lease"]:
            assert time.monotonic() < deadline
        await client.add_tasks(tasks(1))
        return await client.status()

    assert with_client(service, act)["pending"] == 1


def test_a_failed_lease_returns_the_task(service):
    async def act(client):
        await client.add_tasks(tasks(1))
        first = await client.lease("w", 0.0)
        assert await client.fail(first.id, FailureClass.INFRASTRUCTURE, "engine gone") == "pending"
        return first, await client.lease("w", 0.0)

    first, second = with_client(service, act)
    assert (second.task, second.attempt, first.attempt) == (first.task, 2, 1)


def test_groups_are_set_aside_and_workers_shut_out(service):
    async def act(client):
        await client.add_tasks(tasks(4))
        for worker in ("a", "a", "b"):
            await client.put(group(await client.lease(worker, 0.0)))
        batch = await client.take(0, 0.0)
        assert await client.drop(0, [decode_group(batch[0]).id], "nonfinite_loss") == 1
        assert await client.quarantine("b", "wrong model") == 1
        with pytest.raises(ConflictError, match="quarantined: wrong model"):
            await client.lease("b", 0.0)
        await client.pause(True)
        assert await client.lease("c", 0.0) is None
        await client.pause(False)
        assert await client.rollback(0) == 0
        return await client.status()

    status = with_client(service, act)
    assert status["dropped_by_reason"] == {"nonfinite_loss": 1}
    assert (status["taken"], status["pending"]) == (1, 2)


def test_the_token_is_asked_for(tmp_path):
    service = ThreadService(tmp_path)
    try:
        assert with_client(service, lambda client: client.add_tasks(tasks(1)), token=TOKEN) == 1
        with pytest.raises(ConfigError, match="give the service's token"):
            with_client(service, lambda client: client.status(), token="wrong")
    finally:
        service.close()


def test_an_unreachable_service_ends_in_a_clear_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    async def act():
        client = BufferClient(url, retry_s=0.2)
        try:
            await client.status()
        finally:
            await client.close()

    with pytest.raises(UnavailableError, match=url):
        asyncio.run(act())


def test_the_synchronous_client_serves_the_trainer(service):
    async def fill(client):
        await client.add_tasks(tasks(2))
        for _ in range(2):
            await client.put(group(await client.lease("w", 0.0)))

    with_client(service, fill)
    client = BufferClientSync(service.url)
    try:
        assert [decode_group(body).task.id for body in client.take(0, 5.0)] == ["t0", "t1"]
        client.commit(1)
        assert client.take(1, 0.05) is None
        assert client.stats()["trained"] == 2
        assert client.replan(1) == 0
        assert client.rollback(0) == 2
    finally:
        client.close()


@pytest.mark.slow
def test_a_killed_service_loses_nothing_and_its_clients_go_on(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = ProcessService(tmp_path, port=port, lease_s=60.0)

    async def act(client):
        await client.add_tasks(tasks(6))
        await client.close_plan()
        trained = []
        for step in range(3):
            leases = [await client.lease("w", 5.0) for _ in range(2)]
            large = group(leases[0], length=LARGE_BYTES // 13)
            await client.put(large)
            service.kill()
            put = asyncio.ensure_future(client.put(group(leases[1])))
            await asyncio.to_thread(service.start)
            assert (await put).outcome == "ready"
            assert (await client.put(large)).duplicate
            batch = await client.take(step, 5.0)
            service.kill()
            await asyncio.to_thread(service.start)
            again = await client.take(step, 5.0)
            assert again == batch
            await client.commit(step + 1)
            await client.commit(step + 1)
            trained += [decode_group(body).task.id for body in again]
        assert await client.take(3, 5.0) == []
        return trained, await client.status()

    try:
        trained, status = with_client(service, act)
        assert trained == [t.id for t in tasks(6)]
        assert (status["trained"], status["expired"], status["admitted"]) == (6, 0, 6)
        assert service.terminate() == 0
    finally:
        service.close()


def test_the_lease_a_group_names_is_checked(service):
    async def act(client):
        await client.add_tasks(tasks(1))
        one = await client.lease("w", 0.0)
        with pytest.raises(ConflictError, match="is unknown"):
            await client.put(dataclasses.replace(group(one), id="no-such-lease"))

    with_client(service, act)


def test_a_worker_speaks_for_itself_only_and_cannot_do_what_the_trainer_does(tmp_path):
    service = ThreadService(tmp_path)

    def as_worker(name, act):
        return with_client(service, act, token=RUN.issue("worker", name).bearer("buffer"))

    try:
        service.ledger.add_tasks(tasks(3))
        held = as_worker("a", lambda c: c.lease("a", 0))
        before = service.ledger.stats()
        for act in (
            lambda c: c.take(0, 0), lambda c: c.peek(0, [], 0), lambda c: c.commit(1), lambda c: c.rollback(0),
            lambda c: c.quarantine("a", "r"), lambda c: c.reject(0, ["1-1-ab"], "r"), lambda c: c.pause(True),
            lambda c: c.fail_taken(0, ["1-1-ab"], "r"),
            lambda c: c.drop(0, [], "r"), lambda c: c.set_staleness_limit(0), lambda c: c.add_tasks(tasks(1)),
            lambda c: c.tell("/v1/opponents", {"versions": [1]}),
            lambda c: c.close_plan(True), lambda c: c.reclaim("a"), lambda c: c.lease("a", 0),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=r"not for worker/b|it cannot speak for 'a'"):
                as_worker("b", act)
        for act in (
            lambda c: c.renew(held.id), lambda c: c.release(held.id), lambda c: c.put(group(held)),
            lambda c: c.put(group(held, length=LARGE_BYTES // 26 + 100)),
            lambda c: c.fail(held.id, FailureClass.ENVIRONMENT, "e"),
        ):  # fmt: skip
            with pytest.raises(ConflictError, match="belongs to another worker"):
                as_worker("b", act)
        (answer,) = as_worker("b", lambda c: c.put_many([group(held)]))
        assert isinstance(answer, ConflictError)
        assert service.ledger.stats() == before
        large = group(held, length=LARGE_BYTES // 26 + 100)
        assert as_worker("a", lambda c: c.put(large)).outcome == "ready"
        # The file of the group that was refused has become this one's.
        assert len(list((tmp_path / "ledger.bodies").glob("*.body"))) == 1
    finally:
        service.close()


@pytest.mark.slow
@pytest.mark.parametrize("by_file", [True, False])
def test_sixteen_episodes_of_64k_tokens_with_their_experts_are_put_and_taken(tmp_path, by_file):
    """48 layers with 8 experts of each token: 419 MB, of which the buffer once took 268."""
    service = ThreadService(tmp_path, groups_per_step=1, group_size=16, lease_s=START_S)
    length = 65_536
    experts = np.broadcast_to(np.arange(8, dtype=np.uint8), (length - 1, 48, 8))

    async def act(client):
        if not by_file:
            client._folder = ""
        await client.add_tasks(tasks(1))
        lease = await client.lease("w", 1.0)
        made = group(lease, rewards=[float(index % 2) for index in range(16)], length=length)
        made = dataclasses.replace(
            made,
            trajectories=tuple(
                dataclasses.replace(one, extras={"routed_experts": experts}) for one in made.trajectories
            ),
        )
        assert (await client.put(made)).outcome == "ready"
        del made
        (body,) = await client.take(0, 1.0)
        return body

    try:
        body = with_client(service, act)
    finally:
        service.close()
    assert len(body) > 16 * length * (13 + 8 * 48) - 16 * 8 * 48
    taken = decode_group(body)
    assert len(taken.trajectories) == 16
    np.testing.assert_array_equal(taken.trajectories[15].extras["routed_experts"][-1], experts[-1])


def test_groups_that_are_too_large_for_one_call_are_put_in_several(service, monkeypatch):
    calls = []
    put_bodies = BufferClient._put_bodies

    async def counted(client, bodies):
        calls.append(len(bodies))
        return await put_bodies(client, bodies)

    monkeypatch.setattr(BufferClient, "_put_bodies", counted)

    async def act(client):
        await client.add_tasks(tasks(3))
        made = [group(await client.lease("w", 1.0), length=length) for length in (9, 9, LARGE)]
        monkeypatch.setattr(client_module, "CALL_BYTES", 2 * len(encode_group(made[0])))
        return [answer.outcome for answer in await client.put_many(made)]

    assert with_client(service, act) == ["ready"] * 3
    assert calls == [2, 1]
