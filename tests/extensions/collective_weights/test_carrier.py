"""Bytes over a gloo group: what arrives is what was sent, and a lost peer is an error within the deadline."""

import asyncio
import multiprocessing
import os
import signal
import time

import pytest
import torch

from asyncrl.endpoint import route_to
from asyncrl.errors import InfrastructureError
from asyncrl.extensions.collective_weights import carrier as carrier_module
from asyncrl.extensions.collective_weights import group
from asyncrl.extensions.collective_weights.carrier import CollectiveCarrier
from asyncrl.extensions.collective_weights.group import Group, GroupPlace, choose_backend, receive_file
from asyncrl.weights import carrier as carriers
from asyncrl.weights.carrier import advertised
from asyncrl.weights.files import WeightFile, verify_weights, write_weights
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.staging import Staging

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["host/a", "host/b", "other/a"], "nccl"),
        (["cpu", "cpu"], "gloo"),
        (["host/a", "cpu"], "gloo"),
        (["host/a", "host/b", "host/a"], "gloo"),
    ],
)
def test_nccl_needs_a_gpu_for_every_rank_of_its_own(devices, backend):
    assert choose_backend(devices) == backend


def test_engines_are_told_an_address_that_they_can_reach():
    assert advertised(["http://127.0.0.1:8000", "http://localhost:1"]) == "127.0.0.1"
    assert route_to("127.0.0.1") == "127.0.0.1"
    own = {route_to("192.0.2.7")}
    assert advertised(["http://127.0.0.1:8000", "http://192.0.2.7:8000/policies/x"]) in own


def worker(inbox, outbox):
    """An engine's worker: joins and receives what it is told to."""
    group = None
    while True:
        verb, *arguments = inbox.get()
        try:
            if verb == "join":
                group = Group(GroupPlace(**arguments[0]), CPU)
            elif verb == "receive":
                try:
                    receive_file(group, *arguments)
                except RuntimeError:
                    group.abort()
                    raise
            elif verb == "die":
                os._exit(0)
            outbox.put("")
        except Exception as error:
            outbox.put(f"{type(error).__name__}: {error}")


class Engine:
    """An engine of real worker processes, without vLLM."""

    def __init__(self, name, folder, workers):
        self.url = f"http://127.0.0.1/{name}"
        self.staging, self.group, self.joins, self.dies_on = Staging(str(folder)), "", 0, ""
        self.hangs_on = ""
        context = multiprocessing.get_context("fork")
        self.boxes = [(context.SimpleQueue(), context.SimpleQueue()) for _ in range(workers)]
        self.processes = [context.Process(target=worker, args=pair, daemon=True) for pair in self.boxes]
        for process in self.processes:
            process.start()

    async def request(self, path, body=None, timeout_s=60.0):
        if path == self.dies_on:
            self.end()
        if path == self.hangs_on:
            for process in self.processes:
                os.kill(process.pid, signal.SIGSTOP)
        if not self.processes:
            raise InfrastructureError("gone")
        if path == "weights/epoch":
            return {"epoch": 0}
        if path == "weights/expect":
            self.staging.make_room(weight_file_from_json(body))
            return {"devices": ["cpu"] * len(self.boxes), "group": self.group, "base": ""}
        if path == "weights/join":
            self.joins += 1
            self.group = body["name"]
            jobs = [("join", body | {"rank": body["rank"] + i}) for i in range(len(self.boxes))]
        else:
            place = str(self.staging.path(weight_file_from_json(body)))
            jobs = [("receive", place, i, len(self.boxes)) for i in range(len(self.boxes))]
        for (inbox, _), job in zip(self.boxes, jobs, strict=True):
            inbox.put(job)
        deadline = time.monotonic() + timeout_s
        while any(outbox.empty() for _, outbox in self.boxes):
            if not self.processes or time.monotonic() >= deadline:
                raise InfrastructureError(f"no answer within {timeout_s:g} s")
            await asyncio.sleep(0.01)
        errors = [outbox.get() for _, outbox in self.boxes]
        error = next(filter(None, errors), "")
        if error:
            self.group = ""
        return {"error": error}

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.processes = []


def has(engine, file: WeightFile):
    received = engine.staging.local(file)
    return received is not None and verify_weights(received) >= 0


@pytest.mark.slow
def test_files_reach_all_ranks_of_all_engines_and_a_lost_engine_does_not_keep_them_from_the_others(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(group, "BUCKET_BYTES", 1000)
    one, two = Engine("one", tmp_path / "one", 2), Engine("two", tmp_path / "two", 1)
    files = [
        write_weights(tmp_path, version, [("w", torch.full((5003,), float(version)))])
        for version in (1, 2, 3)
    ]

    async def scenario():
        carrier = CollectiveCarrier(CPU, timeout_s=10.0)
        assert await carrier.carry(files[0], [one, two]) == {}
        assert has(one, files[0]) and has(two, files[0])
        assert await carrier.carry(files[1], [one, two]) == {}
        assert has(one, files[1]) and has(two, files[1])
        assert (carrier.groups, one.joins, two.joins) == (1, 1, 1)
        two.dies_on = "weights/receive"
        missed = await carrier.carry(files[2], [one, two])
        assert list(missed) == [two.url] and "gone" in missed[two.url]
        assert has(one, files[2]) and one.joins == 2
        late = Engine("late", tmp_path / "late", 1)
        assert await carrier.carry(files[2], [late]) == {}
        assert has(late, files[2])
        late.end()
        assert list(await carrier.carry(files[2], [late])) == [late.url]
        carrier.close()

    start = time.monotonic()
    try:
        asyncio.run(asyncio.wait_for(scenario(), 60))
    finally:
        one.end()
        two.end()
    assert time.monotonic() - start < 60


@pytest.mark.slow
def test_an_engine_that_hangs_in_a_transfer_is_left_within_its_deadline_and_the_others_get_the_file(
    tmp_path, monkeypatch
):
    for module in (carriers, carrier_module):
        monkeypatch.setattr(module, "ANSWER_S", 2.0)
    one, two = Engine("one", tmp_path / "one", 2), Engine("two", tmp_path / "two", 1)
    file = write_weights(tmp_path, 1, [("w", torch.arange(5003.0))])

    async def scenario():
        carrier = CollectiveCarrier(CPU, timeout_s=3.0)
        two.hangs_on = "weights/receive"
        missed = await carrier.carry(file, [one, two])
        carrier.close()
        return missed

    try:
        missed = asyncio.run(asyncio.wait_for(scenario(), 120))
    finally:
        one.end()
        two.end()
    assert list(missed) == [two.url]
    assert "weights/receive: no answer within" in missed[two.url]
    assert has(one, file) and one.joins == 2


def test_an_engine_without_room_says_so_and_leaves_nothing_behind(small_disk):
    staging = Staging(str(small_disk))
    file = WeightFile(1, "/nowhere", "", 2 * 2**20)
    with pytest.raises(Exception, match=r"no room for 2097152 bytes of weights in .*: No space left"):
        staging.make_room(file)
    assert staging.local(file) is None


def test_copies_of_engines_that_were_killed_are_removed(tmp_path):
    staging = Staging(str(tmp_path))
    orphan = tmp_path / staging._folder.name.replace(str(os.getpid()), "999999999")
    orphan.mkdir()
    file = WeightFile(1, "/nowhere", "", 10)
    staging.make_room(file)
    assert not orphan.exists()
    newer = WeightFile(2, "/nowhere", "", 10, epoch=1)
    staging.make_room(newer)
    staging.keep_only(newer)
    assert (staging.local(file), staging.local(newer).path) == (None, str(staging.path(newer)))


def test_engines_are_free_again_soon_after_the_trainer_has_died_in_a_transfer(tmp_path):
    engine = Engine("one", tmp_path / "one", 2)
    file = write_weights(tmp_path, 1, [("w", torch.zeros(5003))])

    async def scenario():
        carrier = CollectiveCarrier(CPU, timeout_s=10.0)
        assert await carrier.carry(file, [engine]) == {}
        body = file.to_json()
        waiting = asyncio.create_task(engine.request("weights/receive", body))
        await asyncio.sleep(0.2)
        # What the end of its process does to its connections.
        carrier.close()
        return await asyncio.wait_for(waiting, 60)

    try:
        assert "Connection closed" in asyncio.run(scenario())["error"]
        assert engine.group == ""
    finally:
        engine.end()
