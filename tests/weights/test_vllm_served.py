"""An engine that starts late checks and loads what it has missed once, whoever asks, and answers meanwhile."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from asyncrl.errors import UnavailableError
from asyncrl.weights import vllm_served
from asyncrl.weights.files import verify_weights, write_weights
from asyncrl.weights.position import write_committed
from asyncrl.weights.staging import Staging
from asyncrl.weights.vllm_hooks import EngineHook

CALLS = 64


class Loading(vllm_served.Served):
    """An engine's policy that only counts what it would load."""

    def __init__(self, folder):
        super().__init__("main", str(folder), asyncio.Lock())
        self.loaded = []

    async def _load(self, engine, file, *how):
        await asyncio.sleep(0)
        self.loaded.append(file.version)
        self.position.moved(file)
        return {}


@pytest.fixture
def committed(tmp_path):
    file = write_weights(tmp_path, 5, [("w", torch.ones(2))], epoch=1)
    write_committed(tmp_path, file)
    return file


@pytest.fixture
def verified(monkeypatch):
    """The threads in which weights were verified."""
    threads = []

    def verify(file):
        threads.append(threading.current_thread())
        return verify_weights(file)

    monkeypatch.setattr(vllm_served, "verify_weights", verify)
    return threads


def test_calls_that_come_together_verify_and_load_once_beside_the_event_loop(tmp_path, committed, verified):
    async def scenario():
        policy = Loading(tmp_path)
        await asyncio.gather(*(policy.catch_up(None) for _ in range(CALLS)))
        await policy.catch_up(None)
        return policy.loaded

    assert asyncio.run(scenario()) == [5]
    assert len(verified) == 1
    assert verified[0] is not threading.main_thread()


def test_an_engine_that_has_missed_nothing_reads_no_weights(tmp_path, verified):
    policy = Loading(tmp_path)
    asyncio.run(policy.catch_up(None))
    assert (policy.loaded, verified) == ([], [])


def test_a_torn_file_fails_all_that_wait_once_and_is_loaded_when_it_is_whole(tmp_path, committed, verified):
    path = tmp_path / "weights-00000005.safetensors"
    whole = path.read_bytes()
    path.write_bytes(b"torn")

    async def scenario():
        policy = Loading(tmp_path)
        failed = await asyncio.gather(*(policy.catch_up(None) for _ in range(CALLS)), return_exceptions=True)
        path.write_bytes(whole)
        await policy.catch_up(None)
        return failed, policy.loaded

    failed, loaded = asyncio.run(scenario())
    assert all(isinstance(error, UnavailableError) for error in failed)
    assert "could not catch up yet: weights of version 5" in str(failed[0]) and "has 4 bytes" in str(
        failed[0]
    )
    assert (loaded, len(verified)) == ([5], 2)


def test_a_client_that_leaves_does_not_end_what_others_wait_for(tmp_path, committed, verified):
    async def scenario():
        policy = Loading(tmp_path)
        first, second = (asyncio.ensure_future(policy.catch_up(None)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        return policy.loaded

    assert asyncio.run(scenario()) == [5]


def test_the_pause_in_which_weights_are_swapped_empties_the_tier_of_vllm():
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    connector = object.__new__(OffloadingConnector)
    connector.connector_scheduler = Mock()
    scheduler = object.__new__(Scheduler)
    vars(scheduler).update(
        running=[], prev_step_scheduled_req_ids=set(), kv_cache_manager=Mock(), connector=connector, log_stats=False,
        aux_output_connector=None, has_unfinished_requests=lambda: False, reset_encoder_cache=Mock(),
    )  # fmt: skip
    core = object.__new__(EngineCore)
    vars(core).update(scheduler=scheduler, mm_receiver_cache=None, model_executor=Mock())
    core._finish_pause(clear_cache=False)
    assert connector.connector_scheduler.reset_cache.call_count == 0
    core._finish_pause(clear_cache=True)
    assert connector.connector_scheduler.reset_cache.call_count == 1


def test_a_copy_that_another_engine_has_is_read_once_to_take_it_over_and_again_only_if_it_changes(
    tmp_path, verified
):
    file = write_weights(tmp_path / "trainer", 1, [("w", torch.ones(64))])
    content = Path(file.path).read_bytes()
    there = Staging(str(tmp_path / "run"), pid=1)
    there.make_room(file).write_bytes(content)
    policy = Loading(tmp_path / "run")
    assert policy.staging.adopt(file) and policy.staging.is_compared(file)
    assert asyncio.run(policy.prepare(None, file)) == 0.0
    assert verified == [] and policy.prepared == replace(file, path=str(policy.staging.path(file)))
    # Of another checksum, or written since, it is computed.
    assert not policy.staging.is_compared(replace(file, checksum="0"))
    os.utime(policy.staging.path(file), ns=(1, 1))
    assert asyncio.run(policy.prepare(None, file)) > 0.0 and len(verified) == 1
    # So is what was brought to this engine itself.
    alone = Loading(tmp_path / "elsewhere")
    alone.staging.make_room(file).write_bytes(content)
    asyncio.run(alone.prepare(None, file))
    assert len(verified) == 2


class Noting(EngineHook):
    """Notes what is verified, which takes a moment, and refuses to load version 7."""

    def __init__(self, policy):
        super().__init__(policy)
        self.seen = []

    async def verified(self, engine, file):
        self.seen.append(("begins", file.version, self.policy.prepared.version))
        await asyncio.sleep(0.05)
        self.seen.append(("ends", file.version, self.policy.prepared.version))

    async def about_to_load(self, engine, file):
        if file.version == 7:
            raise UnavailableError("a machine lacks it")


class Unloaded:
    """A loader that notes what it loads."""

    def __init__(self, policy):
        self.policy, self.loaded = policy, []

    async def load(self, engine, file, mode, options):
        self.loaded.append(file.version)
        self.policy.position.moved(file)
        return 0.0


def test_versions_that_are_prepared_at_once_are_verified_one_after_another(tmp_path):
    files = [write_weights(tmp_path, v, [("w", torch.ones(2))], epoch=1) for v in (5, 6)]
    policy = vllm_served.Served("main", str(tmp_path), asyncio.Lock(), [Noting], Unloaded)

    async def scenario():
        await asyncio.gather(*(policy.prepare(None, file) for file in files))

    asyncio.run(scenario())
    assert policy.hooks[0].seen == [("begins", 5, 5), ("ends", 5, 5), ("begins", 6, 6), ("ends", 6, 6)]


def test_what_is_missing_is_found_before_anything_is_loaded(tmp_path):
    files = [write_weights(tmp_path, v, [("w", torch.ones(2))], epoch=1) for v in (5, 6, 7)]
    policy = vllm_served.Served("main", str(tmp_path), asyncio.Lock(), [Noting], Unloaded)

    async def scenario():
        for file in files:
            await policy.prepare(None, file)
        Path(files[1].path).unlink()
        await policy.commit(None, files[0], "keep")
        with pytest.raises(
            UnavailableError, match=r"00000006\.safetensors is no longer there; prepare version 6"
        ):
            await policy.commit(None, files[1], "keep")
        with pytest.raises(UnavailableError, match="a machine lacks it"):
            await policy.commit(None, files[2], "keep")

    asyncio.run(scenario())
    assert policy.loader.loaded == [5] and policy.position.version == 5
