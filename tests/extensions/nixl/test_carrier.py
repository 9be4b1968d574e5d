"""Weights by NIXL: engines read what the trainer lends, each only what it lacks, and a failure ends in its reason."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.credentials import own_credentials
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.nixl import agent as nixl_agent
from asyncrl.extensions.nixl.agent import Agent, LentMemory, check_nixl, lent_memory_from_json
from asyncrl.extensions.nixl.carrier import NixlCarrier
from asyncrl.extensions.nixl.reads import read_order_from_json
from asyncrl.extensions.weight_deltas.files import DELTA
from asyncrl.extensions.weight_deltas.transport import WithDeltas
from asyncrl.launch.checks.check import check_extensions
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.trainer.transports import open_carrier
from asyncrl.weights import publish
from asyncrl.weights.carrier import Carried
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.files import ShortForm, WeightFile, verify_weights, write_weights
from asyncrl.weights.publish import FilePublisher
from tests.credentials import RUN
from tests.packages import ImportedWhenUsed

weight_engines = ImportedWhenUsed("scripts.bench.weight_engines")
LENT = LentMemory(b"metadata", 4096, 10, True)
NUM_ELEMENTS = 100_000
# Lends a file until its input ends.
LENDER = """
import sys
from asyncrl.extensions.nixl.agent import Agent
agent = Agent(True)
lent = agent.lend({"whole": sys.argv[1]})["whole"]
print(lent.metadata.hex(), lent.address, lent.num_bytes, flush=True)
sys.stdin.read()
"""


def numbers(version):
    return torch.full((NUM_ELEMENTS,), float(version)) + torch.arange(NUM_ELEMENTS)


def test_an_engine_reads_the_delta_if_it_has_what_that_builds_on_and_the_whole_file_otherwise():
    file = WeightFile(2, "/two", "b" * 32, 10)
    assert file.kind_for("a" * 32) == WHOLE
    changed = WeightFile(
        2,
        "/two",
        "b" * 32,
        10,
        forms={DELTA: ShortForm(path="/two.delta", base_checksum="a" * 32, num_bytes=4)},
    )
    assert [changed.kind_for(base) for base in ("a" * 32, "c" * 32, "")] == [DELTA, WHOLE, WHOLE]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"lent": LENT.to_json() | {"num_bytes": 11}}, "11 bytes are lent of 'whole', the version has"),
        ({"kind": "delta"}, "10 bytes are lent of 'delta'"),
        ({"lent": LENT.to_json() | {"address": 0}}, "must be positive"),
        ({"lent": LENT.to_json() | {"metadata": "text"}}, "must be bytes"),
    ],
)
def test_an_order_that_does_not_fit_its_version_is_refused_before_anything_is_read(order, message):
    file = WeightFile(2, "/two", "b" * 32, 10)
    whole = {"kind": "whole", "lent": LENT.to_json(), "limit_s": 30.0, "stall_s": 5.0}
    assert read_order_from_json(whole, file).lent == LENT == lent_memory_from_json(LENT.to_json())
    with pytest.raises((ValueError, TypeError), match=message):
        read_order_from_json(whole | order, file)


def test_a_missing_package_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"nixl is missing: pip install 'asyncrl\[nixl\]'"):
        check_nixl()


def test_on_one_machine_ucx_is_held_to_loopback_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with nixl_agent._devices(True):
        assert os.environ["UCX_NET_DEVICES"] == "lo"
    with nixl_agent._devices(False):
        assert "UCX_NET_DEVICES" not in os.environ
    monkeypatch.setenv("UCX_NET_DEVICES", "eth7")
    with nixl_agent._devices(True):
        assert os.environ["UCX_NET_DEVICES"] == "eth7"


@pytest.mark.slow
def test_engines_get_each_version_what_changed_if_they_can_use_it_and_all_of_it_after_they_were_away(
    tmp_path, started, monkeypatch
):
    monkeypatch.setattr(publish, "WATCH_S", 0.05)
    engines = started("one", "two")
    carrier = NixlCarrier()
    publisher = FilePublisher(tmp_path / "trainer", [], transport=WithDeltas(Carried(carrier)))

    async def scenario(*clients):
        await publisher.follow(clients)
        weights, lent = numbers(1), []
        for version in (1, 2):
            weights = weights.clone()
            weights[version] = -1.0
            file = publisher.write(version, [("w", weights)])
            report = await publisher.publish(file)
            assert report.failed == {}
            assert all(torch.equal(engine.policy.loaded[version]["w"], weights) for engine in engines)
            lent.append(carrier.lent_bytes - sum(lent))
        assert lent == [2 * file.num_bytes, 2 * file.forms[DELTA].num_bytes]
        # As after a restart.
        policy = engines[1].policy
        policy.position.file, policy.position.version = None, 0
        policy.staging.drop(file)
        policy.loaded.clear()
        while 2 not in policy.loaded:
            await asyncio.sleep(0.05)
        await publisher.close()
        assert torch.equal(policy.loaded[2]["w"], weights)
        assert carrier.lent_bytes == sum(lent) + file.num_bytes
        for engine in engines:
            copies = list(engine.policy.staging._folder.glob("*/*"))
            assert [verify_weights(engine.policy.staging.local(file)) >= 0, len(copies)] == [True, 1]

    run(scenario, [engine.url for engine in engines])


@pytest.mark.slow
def test_an_engine_that_is_gone_is_missed_with_its_reason_and_the_others_get_the_file(tmp_path, started):
    (here,) = started("here")
    gone = "http://127.0.0.1:1"
    file = write_weights(tmp_path / "trainer", 1, [("w", numbers(1))])
    carrier = NixlCarrier()

    async def scenario(*clients):
        return await carrier.carry(file, clients)

    missed = run(scenario, [here.url, gone])
    assert list(missed) == [gone] and missed[gone].startswith("weights/base: ")
    assert verify_weights(here.policy.staging.local(file)) >= 0


def run(scenario, urls):
    async def whole():
        clients = [EngineClient(url, RUN.bearer("engine")) for url in urls]
        try:
            return await asyncio.wait_for(scenario(*clients), 300)
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    return asyncio.run(whole())


@pytest.mark.slow
def test_a_lender_that_stops_or_dies_ends_the_read_with_a_reason_within_its_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(nixl_agent, "PIECE_BYTES", 2**20)
    # Shared memory would be read without the other process's help.
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(4 * 2**20))
    target.write_bytes(bytes(4 * 2**20))
    lender = subprocess.Popen(
        [sys.executable, "-c", LENDER, str(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        metadata, address, num_bytes = lender.stdout.readline().split()
        lent = LentMemory(bytes.fromhex(metadata), int(address), int(num_bytes), True)

        def read(stall_s, before_piece=lambda: False):
            agent = Agent(True)
            try:
                agent.read(lent, target, time.monotonic() + 60, stall_s, before_piece)
            finally:
                agent.close()

        read(60)
        assert target.read_bytes() == source.read_bytes()
        with pytest.raises(UnavailableError, match="given up for another version"):
            read(60, lambda: True)
        lender.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(
            UnavailableError, match=r"^bytes 0 to 1048576: the one that lends them gives nothing"
        ):
            read(1.0)
        assert time.monotonic() - start < 60
        lender.send_signal(signal.SIGCONT)
        pieces = iter([False, False])

        def dies_on_the_third():
            if (found := next(pieces, None)) is None:
                lender.kill()
                lender.wait()
            return bool(found)

        with pytest.raises(UnavailableError, match=r"^bytes 2097152 to 3145728: "):
            read(60, dies_on_the_third)
    finally:
        lender.kill()
        lender.wait()


def test_nothing_is_lent_of_a_file_that_is_not_there(tmp_path):
    agent = Agent(True)
    try:
        with pytest.raises(UnavailableError, match="/none cannot be mapped: "):
            agent.lend({WHOLE: str(tmp_path / "none")})
    finally:
        agent.close()


CONFIG = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "engine": {"weight_transfer": "nixl"}}


def test_a_run_that_names_it_gets_its_carrier():
    config = parse_config(CONFIG)
    engine = SimpleNamespace(device="cpu")
    assert isinstance(open_carrier(config, engine, own_credentials()), NixlCarrier)


def test_a_missing_library_is_named_before_a_run_starts_that_needs_it_here(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_extensions(parse_config(CONFIG), alone=False)
    with pytest.raises(ConfigError, match="nixl is missing: pip install"):
        check_extensions(parse_config(CONFIG))
