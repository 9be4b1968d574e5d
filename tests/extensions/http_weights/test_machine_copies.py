"""What a machine of an engine that has no server gets of a version: a verified copy, fetched over real HTTP."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asyncrl.errors import UnavailableError
from asyncrl.extensions.http_weights import machine_copies
from asyncrl.extensions.http_weights.machine_copies import fetch_copy
from asyncrl.weights.chunks import chunks_of
from asyncrl.weights.files import verify_weights, write_weights
from asyncrl.weights.staging import Staging, copies_of_machine
from tests.packages import ImportedWhenUsed

weight_engines = ImportedWhenUsed("scripts.bench.weight_engines")
CHUNK_BYTES = 4096


@pytest.fixture
def server(tmp_path):
    """An engine's server that has verified a version; `(server, file, chunks)`."""
    engine = weight_engines.LoadingEngine(tmp_path / "server")
    file = write_weights(tmp_path / "server", 3, [("w", torch.arange(20_000.0))], epoch=2)
    engine.policy.prepared = file
    yield engine, file, chunks_of(file.path, CHUNK_BYTES)
    engine.close()


@pytest.fixture
def copies(tmp_path):
    (tmp_path / "other").mkdir()
    return Staging(str(tmp_path / "other"), os.getpid())


def test_a_copy_is_fetched_from_the_server_and_verified(server, copies):
    engine, file, chunks = server
    fetch_copy(file, chunks, engine.url, copies)
    copy = copies.local(file)
    assert Path(copy.path).read_bytes() == Path(file.path).read_bytes()
    assert copies.path_of(2, 3) == Path(copy.path)
    verify_weights(copy)


def test_a_copy_that_is_there_is_kept_and_a_damaged_one_fetched_again(server, copies):
    engine, file, chunks = server
    there = copies.make_room(file)
    there.write_bytes(Path(file.path).read_bytes())
    # Nobody answers at this address.
    fetch_copy(file, chunks, "http://127.0.0.1:9", copies)
    with open(there, "r+b") as opened:
        opened.seek(9000)
        opened.write(bytes(64))
    fetch_copy(file, chunks, engine.url, copies)
    verify_weights(copies.local(file))


def test_a_server_that_has_ended_or_lacks_the_version_is_named_with_the_reason(server, copies, monkeypatch):
    monkeypatch.setattr(machine_copies, "STALL_S", 0.5)
    engine, file, chunks = server
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9: .*refused"):
        fetch_copy(file, chunks, "http://127.0.0.1:9", copies)
    later = replace(file, version=4)
    with pytest.raises(UnavailableError, match=f"{engine.url}: "):
        fetch_copy(later, chunks, engine.url, copies)
    assert copies.local(later) is None


def test_only_machines_without_the_server_have_copies(tmp_path):
    assert copies_of_machine({}) is None
    first = {"ASYNCRL_ENGINE_MACHINES": "2", "ASYNCRL_ENGINE_MACHINE": "0"}
    assert copies_of_machine(first) is None
    other = first | {"ASYNCRL_ENGINE_MACHINE": "1", "ASYNCRL_WEIGHTS_DIR": str(tmp_path)}
    assert copies_of_machine(other).path_of(0, 1).is_relative_to(tmp_path)
