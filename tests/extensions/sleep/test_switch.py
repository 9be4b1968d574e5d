"""Engines that sleep while the trainer works: the calls and their order with a real server. A CPU frees no memory."""

import asyncio
import json
import urllib.request

import numpy as np
import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.sleep.switch import SleepSwitch
from asyncrl.extensions.sleep.turns import MemoryTurns
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from tests.app_thread import free_port
from tests.credentials import AUTHORIZED, RUN
from tests.train.one_step import make_engine
from tests.train.scripted_run import Scripted, groups_at, make_trainer

pytestmark = pytest.mark.slow


def is_sleeping(url):
    request = urllib.request.Request(f"{url}/is_sleeping", headers=AUTHORIZED)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())["is_sleeping"]


@pytest.fixture
def switch(engine_url):
    made = SleepSwitch([engine_url], RUN.bearer("engine"), 30.0)
    yield made
    made(False)


def test_the_engine_sleeps_exactly_while_the_trainer_works(engine_url, switch, tiny_model):
    states = []

    class Watched(Scripted):
        """Notes whether the engine slept at each call."""

        def take(self, step, wait_s):
            states.append(("take", is_sleeping(engine_url)))
            return super().take(step, wait_s)

        def publish(self, version, engine):
            # As the real publisher: the weights are read, then whoever waits for that is told.
            states.append(("weights", is_sleeping(engine_url)))
            turns.end_work()
            states.append(("load", is_sleeping(engine_url)))
            return super().publish(version, engine)

        def commit(self, version):
            states.append(("commit", is_sleeping(engine_url)))
            return super().commit(version)

    class Checkpoints:
        error, write_s = "", 0.0

        def due(self, version):
            return version == 2

        def due_on_disk(self, version):
            return self.due(version)

        def versions(self):
            return []

        def save_due(self, version, extra, after):
            states.append(("save", is_sleeping(engine_url)))
            return 0.0

    engine = make_engine(tiny_model, 1)
    turns = MemoryTurns([engine], switch)
    switch(True)  # as the trainer does before it loads its model
    trainer = make_trainer(engine, Watched([groups_at(0), groups_at(1)]), 2, 0, schedule="synchronous")
    trainer.callbacks.insert(0, turns)
    trainer.checkpointer = Checkpoints()
    assert trainer.run() == 2
    step = [("take", False), ("weights", True), ("load", False), ("commit", False)]
    assert states == [*step, *step, ("save", True)]
    assert not is_sleeping(engine_url)


def test_a_request_waits_while_the_engine_sleeps_and_one_that_was_running_goes_on(engine_url, switch):
    def request(name, tokens):
        return GenerateRequest(name, np.arange(5, 25, dtype=np.int32), tokens, temperature=1.0, seed=1)

    async def begin(client):
        """Return a request that the engine is at; one that ended before that was seen is made again."""
        for attempt in range(100):
            running = asyncio.ensure_future(client.generate(request(f"running-{attempt}", 200)))
            while not running.done():
                if (await client.state())["running"]:
                    return running
                await asyncio.sleep(0.01)
        raise AssertionError("no request was seen running")

    async def scenario():
        client = EngineClient(engine_url)
        try:
            running = await begin(client)
            await asyncio.to_thread(switch, True)
            late = asyncio.ensure_future(client.generate(request("late", 4)))
            done, _ = await asyncio.wait({late}, timeout=1.0)
            assert not done
            await asyncio.to_thread(switch, False)
            alone = await client.generate(request("alone", 200))
            return await running, await late, alone
        finally:
            await client.close()

    running, late, alone = asyncio.run(scenario())
    assert len(late.token_ids) == 4
    assert running.token_ids.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(running.logprobs, alone.logprobs, atol=1e-4)


def test_both_calls_may_be_repeated(engine_url, switch):
    for asleep in (True, True, False, False):
        switch(asleep)
        assert is_sleeping(engine_url) is asleep


def test_an_engine_that_is_gone_is_passed_over_and_one_that_refuses_is_not(engine_url):
    SleepSwitch([f"http://127.0.0.1:{free_port()}"], RUN.bearer("engine"), 5.0)(True)
    with pytest.raises(InfrastructureError, match=r"sleep\?level=1&mode=keep: HTTP 401"):
        SleepSwitch([engine_url], "wrong", 5.0)(True)
    assert not is_sleeping(engine_url)
