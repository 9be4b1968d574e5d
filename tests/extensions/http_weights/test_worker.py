"""What a worker of an engine's further machine does for several files at once is told apart."""

import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from asyncrl.extensions.http_weights import worker as calls
from asyncrl.extensions.http_weights.worker import COPY, job_name, weights_copied, weights_copy, weights_there
from asyncrl.weights.files import write_weights
from asyncrl.weights.staging import Staging

CHUNKS = {"num_bytes": 1, "chunk_bytes": 1, "checksums": []}


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """The only worker of an engine's second machine; the folder of its copies is the parent's."""
    monkeypatch.setenv("ASYNCRL_ENGINE_MACHINES", "2")
    monkeypatch.setenv("ASYNCRL_ENGINE_MACHINE", "1")
    monkeypatch.setenv("ASYNCRL_WEIGHTS_DIR", str(tmp_path / "other"))
    parallel = SimpleNamespace(world_size=2, data_parallel_size=1, data_parallel_index=0, nnodes=2, rank=1)
    return SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))


def ended(worker, name):
    deadline = time.monotonic() + 30.0
    while not (found := weights_copied(worker, name))[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_the_end_of_one_copy_is_not_taken_for_that_of_another(worker, monkeypatch, tmp_path):
    first = write_weights(tmp_path, 3, [("w", torch.ones(2))], epoch=1)
    second = replace(first, epoch=2)
    held = threading.Event()

    def fetch(file, *_):
        if file.epoch == 1:
            held.wait(30.0)
            raise OSError("it did not come")

    monkeypatch.setattr(calls, "fetch_copy", fetch)
    monkeypatch.setattr(calls, "Chunks", lambda **_: None)
    for file in (first, second):
        weights_copy(worker, file.to_json(), CHUNKS, "http://127.0.0.1:9")
    assert ended(worker, job_name(COPY, second)) == (True, "")
    assert weights_copied(worker, job_name(COPY, first)) == (False, "")
    held.set()
    assert ended(worker, job_name(COPY, first)) == (True, "OSError: it did not come")


def test_a_worker_says_whether_its_machine_has_what_it_would_load(worker, monkeypatch, tmp_path):
    file = write_weights(tmp_path, 3, [("w", torch.ones(2))], epoch=1)
    assert not weights_there(worker, file.to_json())
    Staging(str(tmp_path / "other"), os.getppid()).make_room(file)
    assert weights_there(worker, file.to_json())
    assert not weights_there(worker, replace(file, epoch=2).to_json())
    # On the server's machine workers load what the server names.
    monkeypatch.setenv("ASYNCRL_ENGINE_MACHINE", "0")
    assert weights_there(worker, replace(file, epoch=2).to_json())
