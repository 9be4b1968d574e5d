"""The client of environment services, against real services in this process."""

import asyncio
import gc
import os
import random
import socket
import time
from contextlib import asynccontextmanager

import pytest

from asyncrl.data.codec import task_to_map
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.services.env.client import EnvClient, LocalEnvs
from asyncrl.services.env.connection import EnvServiceClient
from asyncrl.services.env.service import create_env_app
from asyncrl.services.env.workers.pool import WorkerPool
from asyncrl.types import Task
from tests.app_thread import AppThread
from tests.credentials import RUN, TOKEN
from tests.waiting import wait_until


class Served(AppThread):
    """A service on a thread of this process, whose host the test may look at."""

    def __init__(self, folder, **options):
        folder.mkdir(exist_ok=True)
        self.host = EnvHost(**options)
        super().__init__(create_env_app(self.host, RUN.access("env")), folder)


@pytest.fixture
def serving(tmp_path):
    services = []

    def begin(**options):
        services.append(Served(tmp_path / str(len(services)), **options))
        return services[-1]

    yield begin
    for service in services:
        service.close()


@asynccontextmanager
async def client_of(*urls, **options):
    client = EnvClient(urls, **options)
    try:
        yield client
    finally:
        await client.close()


def grid(seed=0):
    return Task(f"t{seed}", "gridworld", seed)


def troubled(env="InPlace"):
    return Task("t", f"tests.env.hosted_envs:{env}", 0)


def nobody():
    """An address at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def play(client, seed):
    session = await client.open(grid(seed), {})
    words, total = session.messages[0]["content"].split(), 0.0
    for turn in range(session.max_turns):
        step = await session.step(turn, Action(words[1]), 30)
        total += step.reward
        if step.done:
            break
        words = step.messages[0]["content"].split()
    await session.close()
    return total


def test_many_episodes_are_played_at_once_and_leave_nothing(serving):
    service = serving()

    async def scenario():
        async with client_of(service.url) as client:
            return await asyncio.gather(*(play(client, seed) for seed in range(300)))

    assert asyncio.run(scenario()) == [1.0] * 300
    assert (service.host.counts.opened, len(service.host.sessions)) == (300, 0)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_session_says_what_a_step_needs_and_a_service_gives_it_more_than_an_hour(serving, processes):
    service = serving(runtime=WorkerPool(processes) if processes else None)

    async def body():
        async with client_of(service.url, open_timeout_s=60.0) as client:
            needy, plain = await client.open(troubled("Needy"), {}), await client.open(grid(), {})
            step = await needy.step(0, Action("north"), needy.least_step_s)
            return needy.least_step_s, plain.least_step_s, step.done

    assert asyncio.run(body()) == (10_000.0, 0.0, False)


def test_more_episodes_than_places_wait_their_turn(serving):
    service = serving(max_sessions=8)

    async def scenario():
        async with client_of(service.url) as client:
            return await asyncio.gather(*(play(client, seed) for seed in range(40)))

    assert asyncio.run(scenario()) == [1.0] * 40
    assert service.host.counts.opened == 40
    assert service.host.counts.rejected > 0


@pytest.mark.parametrize("options", [{"max_sessions": 2}, {"limits": {"gridworld": 2}}])
def test_an_episode_waits_for_its_place_for_longer_than_an_open_may_take(serving, options):
    service = serving(**options)

    async def scenario():
        async with client_of(service.url, open_timeout_s=1.0, place_timeout_s=60.0) as client:
            holders = [await client.open(grid(), {}) for _ in range(2)]
            waiting = [asyncio.create_task(play(client, seed)) for seed in range(8)]
            await asyncio.sleep(3.0)
            assert not any(task.done() for task in waiting)
            for session in holders:
                await session.close()
            return await asyncio.gather(*waiting)

    assert asyncio.run(scenario()) == [1.0] * 8


def test_a_wait_in_which_no_place_comes_free_ends_with_the_reason(serving):
    service = serving(max_sessions=1)

    async def scenario():
        async with client_of(service.url, place_timeout_s=2.0) as client:
            await client.open(grid(), {})
            with pytest.raises(InfrastructureError) as caught:
                await client.open(grid(), {})
        return str(caught.value)

    message = asyncio.run(scenario())
    assert "no place came free within 2 s: all 1 environment sessions are in use" in message
    assert "raise env.max_sessions or env.limits" in message


def test_a_wait_continues_while_places_are_freed_for_others(serving):
    service = serving(max_sessions=1)
    # Each place is freed long before the deadline, also where the machine is busy.
    callers, place_timeout_s = 8, 6.0

    async def scenario():
        async with client_of(service.url, place_timeout_s=place_timeout_s) as client:
            first = await client.open(grid(), {})
            queue = []
            for seed in range(callers):
                queue.append(asyncio.create_task(client.open(grid(seed), {})))
                await asyncio.sleep(0.1)
            order = []
            for task in queue:
                await asyncio.sleep(1.05 * place_timeout_s / callers)
                await first.close()
                first = await task
                order.append([one.done() for one in queue])
            return order

    # First come, first served; the last waits for longer than the deadline.
    assert asyncio.run(scenario()) == [[n <= turn for n in range(callers)] for turn in range(callers)]


def test_waiting_for_a_worker_up_to_the_last_moment_is_reported_as_such(serving, monkeypatch):
    service = serving(runtime=WorkerPool(0))
    monkeypatch.setattr(random, "uniform", lambda low, high: 1.0)

    async def scenario():
        async with client_of(service.url, open_timeout_s=1.04) as client:
            with pytest.raises(
                InfrastructureError, match=r"no room within 1\.04 s: no environment worker is ready"
            ):
                await client.open(grid(), {})

    asyncio.run(scenario())


def test_an_open_that_is_given_up_leaves_no_session(serving):
    service = serving(max_sessions=2)

    async def scenario():
        async with client_of(service.url) as client:
            holder = await client.open(grid(), {})
            slow = asyncio.create_task(client.open(troubled("SlowToOpen"), {}))
            while service.host.held.total() < 2:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(client.open(grid(), {}))
            await asyncio.sleep(0.3)
            for given_up in (slow, waiting):
                given_up.cancel()
            await asyncio.gather(slow, waiting, return_exceptions=True)
            # Both places are free once the slow one has opened and the holder has ended.
            await holder.close()
            start = time.monotonic()
            sessions = [await client.open(grid(), {}) for _ in range(2)]
            return time.monotonic() - start, {one.id for one in sessions} == set(service.host.sessions)

    took_s, alone = asyncio.run(scenario())
    assert alone
    assert took_s < 30
    assert service.host.counts.reaped == 0


def test_a_service_that_shuts_down_lets_no_client_wait_for_a_place(tmp_path):
    service = Served(tmp_path, max_sessions=1)

    async def scenario():
        async with client_of(service.url, retry_s=0.5) as client:
            await client.open(grid(), {})
            waiting = asyncio.create_task(client.open(grid(), {}))
            await asyncio.sleep(1.0)
            start = time.monotonic()
            await asyncio.to_thread(service.close)
            assert time.monotonic() - start < 9
            with pytest.raises(InfrastructureError):
                await waiting

    asyncio.run(scenario())


def test_a_full_service_sends_its_episodes_to_the_other(serving):
    small, large = serving(max_sessions=1), serving()

    async def scenario():
        async with client_of(small.url, large.url, open_timeout_s=20.0) as client:
            for _ in range(10):
                await client.open(grid(), {})

    asyncio.run(scenario())
    assert (small.host.counts.opened, large.host.counts.opened) == (1, 9)


def test_a_service_that_is_gone_is_left_aside(serving):
    service = serving()

    async def scenario():
        async with client_of(nobody(), service.url, retry_s=0.2) as client:
            for seed in range(6):
                await client.open(grid(seed), {})
            # The first try found it gone; since then it comes last in every turn.
            assert [s.suspect for s in client._in_turn()] == [False, True]
        async with client_of(nobody(), retry_s=0.2) as client:
            with pytest.raises(InfrastructureError, match="Connect"):
                await client.open(grid(), {})

    asyncio.run(scenario())
    assert service.host.counts.opened == 6


def test_an_answer_cut_off_is_asked_for_again_and_the_step_is_taken_once(serving):
    service = serving()

    async def scenario():
        async with proxy(service.url) as (url, cut), client_of(url) as client:
            session = await client.open(troubled(), {})
            for number in (1, 2, 3):
                cut.append(number)
                step = await session.step(number - 1, Action("hello"), 20)
                assert step.messages[0]["content"] == f"hello {number} {os.getpid()}"
            assert not cut
            await session.close()

    asyncio.run(scenario())
    assert service.host.counts.steps == 3


@asynccontextmanager
async def proxy(url):
    """Forward to `url`; for each entry of `cut`, drop a connection instead of the answer."""
    host, port = url.removeprefix("http://").split(":")
    cut = []

    async def connect(reader, writer):
        to_reader, to_writer = await asyncio.open_connection(host, int(port))

        async def forward(source, target, answers):
            while data := await source.read(65536):
                if answers and cut:
                    cut.pop()
                    break
                target.write(data)
            for end in (writer, to_writer):
                end.close()

        await asyncio.gather(
            forward(reader, to_writer, False), forward(to_reader, writer, True), return_exceptions=True
        )

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", cut


def test_a_slow_step_does_not_keep_others_waiting(serving, tmp_path):
    service = serving()

    async def scenario():
        async with client_of(service.url) as client:
            slow = await client.open(troubled("OnThread"), {})
            fast = await client.open(troubled(), {})
            waiting = asyncio.ensure_future(slow.step(0, Action(f"wait {tmp_path / 'go'}"), 60))
            together = await fast.step(0, Action("hello"), 60)
            assert together.messages[0]["content"].startswith("hello 1")
            assert not waiting.done()
            (tmp_path / "go").touch()
            assert (await waiting).messages[0]["content"] == "found"

    asyncio.run(scenario())


class Counting(EnvServiceClient):
    """Notes how many operations each of its requests carries, and which."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.requests, self.operations = [], []

    async def _call(self, waiting):
        self.requests.append(len(waiting))
        self.operations += [one.operation for one in waiting]
        await super()._call(waiting)


@pytest.mark.parametrize("processes", [0, 1], ids=["here", "in a worker"])
def test_sessions_outlive_a_policy_that_generates_longer_than_their_lease(serving, processes, monkeypatch):
    monkeypatch.setattr("asyncrl.services.env.client.EnvServiceClient", Counting)
    service = serving(lease_s=3.0, runtime=WorkerPool(processes) if processes else None)

    async def scenario():
        async with client_of(service.url) as client:
            sessions = await asyncio.gather(*(client.open(grid(seed), {}) for seed in range(5)))
            (counting,) = client._services
            opened = len(counting.operations)

            def renewals():
                return [o for o in counting.operations[opened:] if o["op"] == "renew"]

            # At a third of the lease: for longer than it lasts.
            async with asyncio.timeout(60):
                while len(renewals()) < 4:
                    await asyncio.sleep(0.05)
            steps = await asyncio.gather(*(s.step(0, Action("north"), 60) for s in sessions))
            return len(steps), renewals()

    played, renewals = asyncio.run(scenario())
    assert (played, service.host.counts.reaped) == (5, 0)
    # All sessions in one call.
    assert {len(renewal["sessions"]) for renewal in renewals} == {5}
    # The client is gone, and its sessions were not closed.
    wait_until(lambda: service.host.counts.reaped == 5)
    assert not service.host.sessions


def test_sessions_that_are_closed_forgotten_or_gone_are_renewed_no_more(serving):
    service = serving(lease_s=2.0)

    async def scenario():
        async with client_of(service.url) as client:
            kept, closed, gone, forgotten = [await client.open(grid(seed), {}) for seed in range(4)]
            ids = [forgotten.id, gone.id]
            await closed.close()
            await client._services[0].operate({"op": "close", "session": gone.id}, 60)
            del forgotten
            gc.collect()
            async with asyncio.timeout(30):
                while len(service.host.sessions) > 1:
                    await asyncio.sleep(0.05)
            return list(service.host.sessions) == [kept.id], ids, client._services[0].leases._held.keys()

    alone, ids, held = asyncio.run(scenario())
    assert alone
    assert not set(ids) & set(held)
    assert service.host.counts.reaped >= 1


def test_sessions_outlive_a_service_that_does_not_answer_for_a_while(serving):
    service = serving(lease_s=1.5)

    async def scenario():
        async with proxy(service.url) as (url, cut), client_of(url) as client:
            session = await client.open(grid(), {})
            cut += [1, 2, 3]
            await asyncio.sleep(3.0)
            assert not cut
            return await session.step(0, Action("north"), 60)

    asyncio.run(scenario())
    assert service.host.counts.reaped == 0


def test_operations_that_are_due_before_the_next_request_may_be_made_are_sent_together(serving):
    service = serving()

    async def scenario():
        client = Counting(service.url, batch_delay_s=2.0)
        try:
            opened = []
            for seed in range(4):
                operation = {"op": "open", "task": task_to_map(grid(seed)), "config": {}}
                opened.append(asyncio.create_task(client.operate(operation, 60)))
                await asyncio.sleep(0.05)
            return client.requests, {one["session_id"] for one in await asyncio.gather(*opened)}
        finally:
            await client.close()

    requests, sessions = asyncio.run(scenario())
    assert requests == [1, 3]
    assert len(sessions) == 4


def test_an_operation_too_large_to_be_sent_fails_alone(serving, monkeypatch):
    monkeypatch.setattr("asyncrl.services.env.service.MAX_BODY_BYTES", 8000)

    async def scenario():
        async with client_of(serving().url) as client:
            sessions = await asyncio.gather(*(client.open(troubled(), {}) for _ in range(5)))
            texts = ["hello", "x" * 9000, "hello", "hello", "hello"]
            steps = [s.step(0, Action(text), 5.0) for s, text in zip(sessions, texts, strict=True)]
            return await asyncio.gather(*steps, return_exceptions=True)

    first, refused, *others = asyncio.run(scenario())
    assert isinstance(refused, InfrastructureError)
    assert "body must have at most 8000 bytes" in str(refused)
    assert [step.messages[0]["content"].split()[:2] for step in (first, *others)] == [["hello", "1"]] * 4


def test_an_operation_that_waits_to_be_sent_fails_when_the_client_is_closed(serving):
    service = serving()

    async def scenario():
        client = EnvServiceClient(service.url, batch_delay_s=5.0)
        operation = {"op": "open", "task": task_to_map(grid()), "config": {}}
        await client.operate(operation, 60)
        waiting = asyncio.create_task(client.operate(operation, 60))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(InfrastructureError, match="the client was closed"):
            await asyncio.wait_for(waiting, 2)

    asyncio.run(scenario())
    assert service.host.counts.opened == 1


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("raise", EnvironmentFailure, "lost key"),
        ("broken", EnvironmentFailure, "level file"),
        ("infrastructure", InfrastructureError, "machine is gone"),
        ("sleep 20", InfrastructureError, r"longer than 0.1 s"),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_failures_are_sorted_alike_here_and_over_http(serving, local, word, error, message):
    async def scenario(envs):
        session = await envs.open(troubled("OnThread"), {})
        with pytest.raises(error, match=message):
            await session.step(0, Action(word), 0.1 if "sleep" in word else 60)
        with pytest.raises(InfrastructureError, match="has ended"):
            await session.step(1, Action("hello"), 5)
        for task, config in (
            (troubled(), {"refuse": True}),
            (Task("t", "gridwrld"), {}),
            (grid(), {"size": 1}),
        ):
            with pytest.raises(EnvironmentFailure):
                await envs.open(task, config)
        await envs.close()

    envs = LocalEnvs() if local else EnvClient([serving().url])
    asyncio.run(scenario(envs))


def test_a_wrong_token_is_said_to_be_one(serving):
    service = serving()

    async def scenario():
        async with client_of(service.url, token=TOKEN) as client:
            await (await client.open(grid(), {})).close()
        async with client_of(service.url, token="guess") as client:
            with pytest.raises(InfrastructureError, match="bearer token"):
                await client.open(grid(), {})

    asyncio.run(scenario())


def test_a_silent_service_delays_no_caller_beyond_the_deadline():
    async def scenario():
        async def never(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(url, open_timeout_s=0.5) as client:
                with pytest.raises(InfrastructureError, match=r"no answer to open within 0\.5 s"):
                    await client.open(grid(), {})

    asyncio.run(scenario())


def test_a_client_without_services_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        EnvClient([])
