"""A disk that is full or fails, no further file, no memory: whoever calls the buffer waits, and nothing is lost."""

import contextlib
import errno
import logging
import resource
import threading

import psutil
import pytest

from asyncrl.errors import OutageError
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.http import app as http_app
from tests.buffer.factories import group, tasks
from tests.buffer.serving import ProcessService, ThreadService
from tests.services.buffer.test_buffer_client import with_client
from tests.waiting import wait_until

REFUSALS = 3
"""Answers that tell of the outage before it ends."""


@pytest.fixture
def trainer(service):
    client = BufferClientSync(service.url)
    yield client
    client.close()


def full(service):
    store = service.ledger._store
    store.execute("PRAGMA max_page_count=8")
    return lambda: store.execute("PRAGMA max_page_count=100000")


def failing(service):
    """No file of this process takes a byte: SQLite reports an I/O error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def outage(monkeypatch, begin, service):
    """The ledger cannot be written until that has been told `REFUSALS` times; gives what was told."""
    end, told, tell = begin(service), [], http_app.as_told

    def noted(error):
        told.append(type(error).__name__)
        if len(told) == REFUSALS:
            end()
        return tell(error)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(http_app, "as_told", noted)
            yield told
    finally:
        end()
    assert len(told) == REFUSALS


def fill_a_batch(service, number=4):
    async def act(client):
        await client.add_tasks(tasks(number))
        for _ in range(2):
            await client.put(group(await client.lease("w", 0)))

    with_client(service, act)


def test_the_trainer_waits_for_a_ledger_that_cannot_be_written_and_its_step_counts_once(
    service, trainer, monkeypatch, caplog
):
    fill_a_batch(service)
    first = trainer.take(0, 1.0)
    with caplog.at_level(logging.WARNING), outage(monkeypatch, failing, service) as told:
        trainer.commit(1)
    began, ended = [one.getMessage() for one in caplog.records]
    assert began.endswith("disk I/O error; nothing was changed; trying again until that ends")
    assert ended.endswith(f"in which {REFUSALS} attempts failed")
    assert set(told) == {"OutageError"}
    assert len(first) == 2
    status = trainer.stats()
    assert (status["version"], status["trained"], status["pending"]) == (1, 2, 2)


@pytest.mark.parametrize("begin", [full, failing])
def test_a_worker_that_waits_puts_its_group_once(service, begin, monkeypatch):
    async def act(client):
        await client.add_tasks(tasks(2))
        one = await client.lease("w", 0)
        with outage(monkeypatch, begin, service):
            put = await client.put(group(one, length=8_000))
        return put, await client.put(group(one, length=8_000)), await client.status()

    put, again, status = with_client(service, act)
    assert (put.outcome, put.duplicate, again.duplicate) == ("ready", False, True)
    assert (status["ready"], status["pending"]) == (1, 1)


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), MemoryError("of the buffer")]
)
def test_what_the_buffer_lacks_is_not_held_against_a_worker(service, error, monkeypatch):
    put, failures = service.ledger._puts.put, REFUSALS

    def lacking(*call):
        nonlocal failures
        if failures:
            failures -= 1
            raise error
        return put(*call)

    monkeypatch.setattr(service.ledger._puts, "put", lacking)

    async def act(client):
        await client.add_tasks(tasks(2))
        one, two = [await client.lease("w", 0) for _ in range(2)]
        return await client.put_many([group(one), group(two)]), await client.status()

    answers, status = with_client(service, act)
    assert [answer.outcome for answer in answers] == ["ready", "ready"]
    assert failures == 0 and not status["quarantined"]


def test_leases_end_though_the_ledger_could_not_be_written_when_they_should_have(tmp_path, caplog):
    service = ThreadService(tmp_path, lease_s=1.0)

    async def act(client):
        await client.add_tasks(tasks(1))
        await client.lease("w", 0)

    with_client(service, act)
    end = failing(service)
    try:
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: "leases that end: ledger" in caplog.text, service.thread.is_alive)
        end()
        wait_until(lambda: service.ledger.stats()["expired"] == 1, service.thread.is_alive)
    finally:
        end()
        service.close()


def test_a_process_whose_files_cannot_grow_for_a_while_loses_nothing(tmp_path):
    service = ProcessService(tmp_path)
    trainer = BufferClientSync(service.url)
    process = psutil.Process(service.process.pid)
    before = process.rlimit(resource.RLIMIT_FSIZE)
    try:
        fill_a_batch(service)
        trainer.take(0, 1.0)
        process.rlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        impatient = BufferClientSync(service.url, retry_s=0.0)
        with pytest.raises(OutageError, match="disk I/O error; nothing was changed"):
            impatient.commit(1)
        impatient.close()
        back = threading.Timer(1.0, process.rlimit, (resource.RLIMIT_FSIZE, before))
        back.start()
        trainer.commit(1)
        back.join()
        status = trainer.stats()
        assert (status["version"], status["trained"], status["pending"]) == (1, 2, 2)
    finally:
        trainer.close()
        service.close()
