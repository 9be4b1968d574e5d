"""The buffer's node is lost while groups arrive: what it acknowledged is restored from its replica elsewhere."""

import asyncio
import contextlib
import shutil

import pytest

from asyncrl.buffer.body_files import LARGE_BYTES
from asyncrl.cli import main
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import UnavailableError
from asyncrl.extensions.replica.replica import FOLDER
from asyncrl.extensions.replica.service import ReplicaService, create_replica_app
from asyncrl.services.buffer.client import BufferClient
from tests.app_thread import AppThread
from tests.buffer.factories import group, tasks
from tests.buffer.serving import ProcessService
from tests.credentials import RUN, TOKEN

pytestmark = pytest.mark.slow

SETTINGS = {"groups_per_step": 8, "max_staleness": 1, "lease_s": 60.0}
LENGTHS = (0, LARGE_BYTES // 26 + 100)


async def put_until_killed(service, acknowledged, enough, url=""):
    """Let four workers put groups; kill the service's process once `enough` of them were acknowledged. url: where
    they call it, if not at its own address."""
    client = BufferClient(url or service.url, TOKEN, retry_s=0.0)

    async def work(number):
        with contextlib.suppress(UnavailableError):
            while True:
                one = await client.lease(f"w{number}", 0.0)
                if one is None:
                    return
                finished = group(one, length=LENGTHS[number % 2])
                await client.put(finished)
                acknowledged.append(finished)
                if len(acknowledged) == enough:
                    service.kill()

    await client.add_tasks(tasks(40))
    await asyncio.gather(*(work(number) for number in range(4)))
    await client.close()


def test_kill_and_restore_to_another_folder_lose_nothing_that_was_acknowledged(tmp_path, capsys):
    first, other, replica = (tmp_path / name for name in ("first", "other", "replica"))
    first.mkdir()
    acknowledged = []
    service = ProcessService(first, replica=str(replica), **SETTINGS)
    try:
        asyncio.run(put_until_killed(service, acknowledged, enough=9))
    finally:
        service.close()
    shutil.rmtree(first)
    assert main(["restore", str(replica), str(other)]) == 0
    assert "0 of them lost" in capsys.readouterr().out
    assert main(["restore", str(replica), str(other)]) == 2
    again = ProcessService(other, replica=str(replica), **SETTINGS)
    check_that_it_goes_on(again, again.url, acknowledged)


def test_a_buffer_on_another_machine_goes_on_from_the_replica_service(tmp_path):
    first, other = tmp_path / "first", tmp_path / "other"
    for folder in (first, other):
        folder.mkdir()
    app = AppThread(create_replica_app(ReplicaService(tmp_path / FOLDER), RUN.access("buffer")), tmp_path)
    try:
        acknowledged = []
        service = ProcessService(first, replica=app.url, **SETTINGS)
        try:
            asyncio.run(put_until_killed(service, acknowledged, enough=9, url=app.url))
        finally:
            service.close()
        shutil.rmtree(first)
        again = ProcessService(other, replica=app.url, **SETTINGS)
        check_that_it_goes_on(again, app.url, acknowledged)
    finally:
        app.close()


def check_that_it_goes_on(again, url, acknowledged):
    """Everything acknowledged is there, and can be trained."""

    async def go_on():
        client = BufferClient(url, TOKEN)
        repeated = [await client.put(one) for one in acknowledged]
        while (await client.status())["ready"] < 8:
            await client.put(group(await client.lease("w", 5.0)))
        batch = await client.take(0, 5.0)
        await client.commit(1)
        status = await client.status()
        await client.close()
        return repeated, batch, status

    try:
        repeated, batch, status = asyncio.run(go_on())
    finally:
        again.close()
    assert len(acknowledged) >= 9
    assert all(one.duplicate and one.outcome == "ready" for one in repeated)
    sent = {one.id: encode_group(one) for one in acknowledged}
    found = {decode_group(body).id: body for body in batch}
    # What three more workers had put may be there as well.
    assert len(found.keys() & sent.keys()) >= len(batch) - 3 == 5
    assert all(found[name] == sent[name] for name in found.keys() & sent.keys())
    assert status["trained"] == 8
    assert sum(status[name] for name in ("pending", "in_flight", "ready", "trained")) == 40
