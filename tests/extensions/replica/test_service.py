"""A ledger's second place over HTTP: one writer at a time, and whoever looks for the buffer finds it."""

import asyncio
import shutil

import pytest

from asyncrl.buffer.body_files import LARGE_BYTES
from asyncrl.buffer.ledger import Ledger
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.replica import client as replica_client
from asyncrl.extensions.replica import replica
from asyncrl.extensions.replica.client import HttpPlace
from asyncrl.extensions.replica.replica import FOLDER, LEDGER, seed, settle
from asyncrl.extensions.replica.service import ReplicaService, create_replica_app
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.buffer.service import create_buffer_app
from asyncrl.services.http.client import HttpClient
from tests.app_thread import AppThread
from tests.buffer.factories import group, lease, ledger
from tests.credentials import RUN

LARGE = LARGE_BYTES // 26 + 100
"""Tokens of each of two trajectories that make a body large."""


@pytest.fixture
def served(tmp_path):
    """The service, and a function that opens the ledger of a machine that is replicated to it."""
    app = AppThread(
        create_replica_app(ReplicaService(tmp_path / "run" / FOLDER), RUN.access("buffer")), tmp_path
    )
    books = []

    def opened(machine):
        (tmp_path / machine).mkdir(exist_ok=True)
        place = HttpPlace(app.url, RUN.bearer("buffer"))
        path = tmp_path / machine / LEDGER
        place.bring_up(path)
        books.append(ledger(path, replica=place))
        return books[-1]

    yield app, opened
    for book in books:
        book.close()
    if app.thread.is_alive():
        app.close()


def content(book):
    tables = ("tasks", "counts", "bodies", "quarantine", "failures")
    return {table: book._store.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables}


def test_a_large_body_comes_to_the_replica_in_pieces(served, tmp_path, monkeypatch):
    app, _ = served
    sent = []
    call = HttpPlace._call

    def noted(place, name, /, **fields):
        sent.append((fields["offset"], len(fields["data"])) if name == "body" else name)
        return call(place, name, **fields)

    monkeypatch.setattr(HttpPlace, "_call", noted)
    monkeypatch.setattr(replica_client, "PART_BYTES", 1000)
    body = bytes(range(256)) * 10
    HttpPlace(app.url, RUN.bearer("buffer")).write_body(7, body)
    assert sent == ["attach", (0, 1000), (1000, 1000), (2000, 560)]
    assert (tmp_path / "run" / FOLDER / "bodies" / "00000007.body").read_bytes() == body


def test_each_machine_goes_on_with_all_that_the_one_before_acknowledged(served, tmp_path, monkeypatch):
    monkeypatch.setattr(replica, "LONGEST_LOG_BYTES", 200_000)
    _, opened = served
    first = opened("first")
    sent = [group(lease(first), length=length) for length in (LARGE, 0)]
    for one in sent:
        first.put(one)
    first.take(0)
    first.commit(1)
    for _ in range(2):
        first.put(group(lease(first), length=LARGE))
    left = content(first)
    first.close()
    shutil.move(tmp_path / "first", tmp_path / "returned")

    second = opened("second")
    assert content(second) == left
    assert all(second.put(one).duplicate for one in sent)
    batch = second.take(1).groups
    assert all(second.read(batch))
    second.commit(2)
    left = content(second)
    # The first machine is there again, with the ledger that it had when it was lost.
    third = opened("returned")
    assert content(third) == left
    third.close()
    # The same one again: its own ledger is the newest.
    assert content(opened("returned")) == left


def test_a_buffer_that_was_replaced_acknowledges_nothing_more_and_ends(served):
    _, opened = served
    first = opened("first")
    lease(first)
    ended = []
    first._store.follower.place.fenced = lambda: ended.append(True)
    second = opened("second")
    with pytest.raises(
        UnavailableError, match=r"another buffer has attached to this replica .*; this buffer ends"
    ):
        lease(first)
    assert ended == [True]
    assert second.stats()["in_flight"] == 1


def test_a_replica_that_is_away_for_long_refuses_the_change(served, monkeypatch):
    app, opened = served
    book = opened("first")
    monkeypatch.setattr("asyncrl.extensions.replica.client.RETRY_S", 0.3)
    app.close()
    with pytest.raises(UnavailableError, match=r"does not answer.*; nothing is acknowledged without it"):
        lease(book)


def test_callers_follow_the_buffer_and_may_not_touch_the_copy(served, tmp_path):
    app, opened = served
    worker = RUN.issue("worker", "w").bearer("buffer")

    async def calls():
        client, raw = BufferClient(app.url, worker), HttpClient(app.url, worker)
        with pytest.raises(UnavailableError, match="no buffer has attached"):
            await client.status()
        with pytest.raises(ConfigError, match="not for worker/w"):
            await raw.post("/v1/replica/attach", {"epoch": 0})
        for name in ("first", "second"):
            book = opened(name)
            buffer = AppThread(create_buffer_app(book, RUN), tmp_path, name)
            book._store.follower.place.serving(buffer.url)
            # Those that ask at the same time are all sent there.
            leases = await asyncio.gather(*(client.lease("w", 0.0) for _ in range(2)))
            found = {one.task.id for one in leases}
            assert found == {"first": {"t0", "t1"}, "second": {"t2", "t3"}}[name]
            assert (await client.status())["in_flight"] == {"first": 2, "second": 4}[name]
            await asyncio.to_thread(buffer.close)
        await client.close()
        await raw.close()

    asyncio.run(calls())


def test_a_run_folder_has_the_ledger_again_when_the_run_is_over(tmp_path):
    path, folder = tmp_path / LEDGER, tmp_path / FOLDER
    book = ledger(path)
    sent = group(lease(book), length=LARGE)
    book.put(sent)
    settings = book.settings
    book.close()
    seed(path, folder)
    for _ in range(2):
        # The second time there is nothing to do, as after a crash behind the last step.
        settle(folder, path)
        assert not folder.exists()
    again = Ledger(path, settings)
    assert again.put(sent).duplicate
    again.put(group(lease(again)))
    assert all(again.read(again.take(0).groups))
    again.close()
