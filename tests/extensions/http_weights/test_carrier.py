"""Weights over HTTP without a common folder: each byte from the trainer once, then from engine to engine."""

import asyncio
import http.client
import logging
import os
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from asyncrl.errors import AsyncRLError
from asyncrl.extensions.http_weights import carrier as http_carrier
from asyncrl.extensions.http_weights.carrier import HttpCarrier, tree
from asyncrl.extensions.http_weights.source import HttpWeightSource
from asyncrl.extensions.weight_deltas.transport import WithDeltas
from asyncrl.services.engine.client import EngineClient
from asyncrl.weights import publish
from asyncrl.weights.carrier import Carried
from asyncrl.weights.chunks import WHOLE, chunks_of, matching
from asyncrl.weights.files import verify_weights, write_weights
from asyncrl.weights.publish import FilePublisher
from scripts.bench.slow_link import SlowLink, SourceBehindLink
from tests.credentials import RUN
from tests.packages import ImportedWhenUsed
from tests.waiting import wait_until

weight_engines = ImportedWhenUsed("scripts.bench.weight_engines")
CHUNK_BYTES = 32 * 1024
NUM_ELEMENTS = 100_000
PATIENT_S = 200.0
"""Where no source hangs, however busy the machine is."""
REQUESTS = 0.3
"""Share of the bytes that requests, their headers and pieces on the way may take in these small files."""


def run(scenario, carrier, urls):
    async def whole():
        clients = [EngineClient(url, RUN.bearer("engine")) for url in urls]
        try:
            return await asyncio.wait_for(scenario(*clients), 300)
        finally:
            carrier.close()
            await asyncio.gather(*(client.close() for client in clients))

    return asyncio.run(whole())


def numbers(version):
    return torch.full((NUM_ELEMENTS,), float(version)) + torch.arange(NUM_ELEMENTS)


def copy_of(engine, file):
    """Return the engine's verified copy, None without one."""
    copy = engine.policy.staging.local(file)
    return copy if copy is not None and verify_weights(copy) >= 0 else None


def test_the_trainer_sends_to_one_engine_and_each_engine_to_two():
    assert tree(["a", "b", "c", "d", "e"]) == [[], ["a"], ["a"], ["b", "a"], ["b", "a"]]


def kept(engine):
    return {path.name for path in engine.policy.staging._folder.glob("*/*")}


@pytest.mark.slow
def test_a_link_with_a_delay_and_a_rate_carries_each_version_once_and_then_only_what_changed(
    tmp_path, started
):
    """100 ms and 10 Mbit/s between the trainer and all engines, which share no folder with it."""
    engines = started("one", "two", "three", "four")
    source = SourceBehindLink(RUN, delay_s=0.05, bytes_per_s=10e6 / 8)
    carrier = HttpCarrier(source, PATIENT_S, CHUNK_BYTES)
    publisher = FilePublisher(tmp_path / "trainer", [], transport=WithDeltas(Carried(carrier)))

    async def scenario(*clients):
        await publisher.follow(clients)
        weights, carried = numbers(1), []
        for version in (1, 2):
            weights = weights.clone()
            weights[version] = -1.0
            file = publisher.write(version, [("w", weights)])
            report = await publisher.publish(file)
            assert report.failed == {}
            assert [torch.equal(engine.policy.loaded[version]["w"], weights) for engine in engines] == [
                True
            ] * 4
            carried.append(source.carried_bytes - sum(carried))
        assert file.num_bytes <= carried[0] < file.num_bytes * (1 + REQUESTS)
        assert carried[1] < file.num_bytes / 10
        # An engine that comes back without anything gets the version from the others.
        engines[3].policy.position.file = None
        engines[3].policy.position.version = 0
        engines[3].policy.staging.drop(file)
        engines[3].policy.loaded.clear()
        before = source.carried_bytes
        while 2 not in engines[3].policy.loaded:
            await asyncio.sleep(0.05)
        await publisher.close()
        assert torch.equal(engines[3].policy.loaded[2]["w"], weights)
        assert source.carried_bytes == before
        # Two files of a version at most, and only the newest version. One that has just loaded it tidies up next.
        wait_until(lambda: all(kept(engine) == {Path(file.path).name} for engine in engines), limit_s=60.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "WATCH_S", 0.05)
        run(scenario, carrier, [engine.url for engine in engines])


@pytest.fixture
def processes():
    """Numbers of four processes that run."""
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield [os.getpid(), *(one.pid for one in others)]
    for one in others:
        one.kill()
        one.wait()


def held_bytes(folder):
    """Return the memory of all files of weights in a folder."""
    found = [path.stat() for path in folder.glob("staged-*/*/*") if path.is_file()]
    return sum({one.st_ino: one.st_size for one in found}.values())


def test_engines_of_one_machine_fetch_a_version_once_and_hold_one_copy_together(tmp_path, started, processes):
    """Four engines on one machine, two on another. Version 2 comes as a delta, of which each machine makes one copy."""
    engines = [one for process in processes for one in started("one", process=process)]
    engines += [one for process in processes[:2] for one in started("two", process=process)]
    source = SourceBehindLink(RUN)
    carrier = HttpCarrier(source, PATIENT_S, CHUNK_BYTES)
    publisher = FilePublisher(tmp_path / "trainer", [], transport=WithDeltas(Carried(carrier)))

    async def fetched(file, clients):
        """The bytes that each engine has fetched, None where it shares what another one has."""
        found = []
        for client in clients:
            try:
                answer = await client.request("weights/fetched", file.to_json())
                found.append(answer["fetched_bytes"])
            except AsyncRLError:
                found.append(None)
        return found

    async def scenario(*clients):
        await publisher.follow(clients)
        first = publisher.write(1, [("w", numbers(1))])
        assert (await publisher.publish(first)).failed == {}
        whole = first.num_bytes
        assert await fetched(first, clients) == [whole, None, None, None, whole, None]
        assert [held_bytes(tmp_path / name) for name in ("one", "two")] == [whole, whole]
        changed = numbers(1)
        changed[7] = -1.0
        second = publisher.write(2, [("w", changed)])
        assert second.forms["delta"].num_bytes < whole / 10
        assert (await publisher.publish(second)).failed == {}
        assert [torch.equal(engine.policy.loaded[2]["w"], changed) for engine in engines] == [True] * 6
        assert [held_bytes(tmp_path / name) for name in ("one", "two")] == [whole, whole]
        # One that comes back without anything fetches nothing, not even from the others.
        policy = engines[2].policy
        policy.staging.drop(second)
        policy.position.file, policy.position.version = None, 0
        policy.loaded.clear()
        while 2 not in policy.loaded:
            await asyncio.sleep(0.05)
        await publisher.close()
        assert (await fetched(second, clients))[2] is None
        assert held_bytes(tmp_path / "one") == whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "WATCH_S", 0.05)
        run(scenario, carrier, [engine.url for engine in engines])


def test_a_copy_that_is_damaged_is_not_shared_and_a_new_one_leaves_that_of_others_alone(
    tmp_path, started, processes
):
    one, other = (started("one", process=process)[0] for process in processes[:2])
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])
    content = Path(file.path).read_bytes()
    mine, theirs = one.policy.staging, other.policy.staging
    mine.make_room(file).write_bytes(content[:-1] + b"\0")
    assert not theirs.adopt(file)
    mine.make_room(file).write_bytes(content)
    assert theirs.adopt(file) and theirs.adopt(file)
    assert theirs.path(file).samefile(mine.path(file))
    # Room for the same version again, as after damage: the other engine may have mapped what it had.
    assert mine.make_room(file).stat().st_size == len(content)
    assert theirs.path(file).read_bytes() == content
    # What another engine still maps is not gone on with, either.
    mine.drop(file)
    assert mine.adopt(file)
    path, resumes = mine.fetch_room(file, WHOLE, file.num_bytes)
    assert not resumes and not path.samefile(theirs.path(file))


@pytest.mark.slow
def test_an_interrupted_fetch_goes_on_at_the_byte_it_had_reached(tmp_path, started):
    (engine,) = started("one")
    source = SourceBehindLink(RUN)
    carrier = HttpCarrier(source, chunk_bytes=CHUNK_BYTES)
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])

    async def scenario(client):
        source.offer(file, [client.url])
        source.link.cut_after = file.num_bytes // 2
        assert await carrier.carry(file, [client]) == {}
        return await client.request("weights/fetched", file.to_json())

    found = run(scenario, carrier, [engine.url])
    assert source.link.cuts == 1
    assert found["fetched_bytes"] == file.num_bytes
    assert copy_of(engine, file)


def test_an_engine_goes_on_with_what_one_that_was_killed_had_fetched(tmp_path, started):
    (engine,) = started("one")
    carrier = HttpCarrier(HttpWeightSource(RUN), chunk_bytes=CHUNK_BYTES)
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))], epoch=3)
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = (
        tmp_path
        / "one"
        / f"staged-{socket.gethostname()}-{gone.pid}"
        / "3"
        / (Path(file.path).name + ".fetching")
    )
    left.parent.mkdir(parents=True)
    content = bytearray(Path(file.path).read_bytes())
    missing = [2, 5, 6]
    for index in missing:
        content[index * CHUNK_BYTES + 7] ^= 0xFF
    left.write_bytes(content)
    assert len(matching(chunks_of(file.path, CHUNK_BYTES), left)) == len(content) // CHUNK_BYTES + 1 - len(
        missing
    )

    async def scenario(client):
        assert await carrier.carry(file, [client]) == {}
        return await client.request("weights/fetched", file.to_json())

    found = run(scenario, carrier, [engine.url])
    assert found["fetched_bytes"] == len(missing) * CHUNK_BYTES
    assert copy_of(engine, file)
    assert not left.parent.exists()


@pytest.mark.slow
def test_a_source_that_hangs_is_left_with_its_reason_and_another_one_taken(
    tmp_path, started, monkeypatch, caplog
):
    monkeypatch.setattr(http_carrier, "ANSWER_S", 8.0)
    engines = started("one", "two", "three")
    first = SlowLink(engines[0].url)
    first.silent_after = 200_000
    urls = [first.url, engines[1].url, engines[2].url]
    carrier = HttpCarrier(HttpWeightSource(RUN), stall_s=2.0, chunk_bytes=CHUNK_BYTES)
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])
    wait = carrier._wait

    async def wait_once_silent(*args):
        # Else the engine behind the link may have answered before that.
        while first.carried_bytes < first.silent_after:
            await asyncio.sleep(0.01)
        return await wait(*args)

    monkeypatch.setattr(carrier, "_wait", wait_once_silent)

    async def scenario(*clients):
        return await carrier.carry(file, clients)

    with caplog.at_level(logging.WARNING, "asyncrl.weights"):
        try:
            missed = run(scenario, carrier, urls)
        finally:
            first.close()
    assert list(missed) == [first.url] and "TimeoutError" in missed[first.url]
    assert copy_of(engines[1], file) and copy_of(engines[2], file)
    assert f"no weights from {first.url} any more: no bytes within 2 s" in caplog.text


@pytest.mark.slow
def test_a_source_with_wrong_bytes_is_left_and_without_any_source_the_fetch_ends_with_all_reasons(
    tmp_path, started, caplog
):
    one, two, late = started("one", "two", "late")
    source = HttpWeightSource(RUN)
    carrier = HttpCarrier(source, stall_s=1.0, chunk_bytes=CHUNK_BYTES)
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])

    async def scenario(first, second, third):
        assert await carrier.carry(file, [first, second]) == {}
        for path in (one.policy.staging.path(file), two.policy.staging.path(file)):
            damaged = bytearray(path.read_bytes())
            damaged[-1] ^= 0xFF
            path.write_bytes(damaged)
        assert await carrier.carry(file, [third]) == {}
        assert copy_of(late, file)
        for path in (late.policy.staging.path(file), late.policy.staging.incomplete_path(file, WHOLE)):
            path.unlink()
        source.find = lambda *_: None
        return await carrier.carry(file, [third])

    with caplog.at_level(logging.WARNING, "asyncrl.weights"):
        missed = run(scenario, carrier, [engine.url for engine in (one, two, late)])
    for engine in (one, two):
        assert f"no weights from {engine.url} any more: its bytes" in caplog.text
    assert list(missed) == [late.url] and "no bytes within 1 s" in missed[late.url]


@pytest.mark.parametrize(
    ("credentials", "wanted", "status"),
    [
        ("", "bytes=0-9", 401),
        (RUN.issue("worker", "w").bearer("engine"), "bytes=0-9", 403),
        (RUN.issue("engine").bearer("weights"), "bytes=0-9", 206),
        (RUN.issue("engine").bearer("weights"), "bytes=0-99999999999", 503),
        (RUN.issue("engine").bearer("weights"), "bytes=-5", 400),
    ],
)
def test_bytes_are_given_to_engines_of_the_run_only(tmp_path, started, credentials, wanted, status):
    (engine,) = started("one")
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])
    source = HttpWeightSource(RUN)
    carrier = HttpCarrier(source, chunk_bytes=CHUNK_BYTES)
    answers = {}

    async def scenario(client):
        assert await carrier.carry(file, [client]) == {}
        for name, url in (("trainer", source.offer(file, [client.url])), ("engine", engine.url)):
            answers[name] = await asyncio.to_thread(get, url, credentials, wanted)

    def get(url, token, header):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        headers = {"Authorization": f"Bearer {token}", "Range": header}
        connection.request("GET", "/asyncrl/v1/weights/bytes/0/1/whole", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, len(body) if answer.status == 206 else 0

    run(scenario, carrier, [engine.url])
    if status == 403:
        # A bearer for another kind of service is none here.
        assert answers["trainer"][0] == 401
        answers["trainer"] = answers["engine"]
    if status == 503:
        # The trainer has all there is; an engine may have more in a moment.
        answers["trainer"] = answers["engine"]
    assert {answers["trainer"], answers["engine"]} == {(status, 10 if status == 206 else 0)}
