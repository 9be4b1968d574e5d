"""Engines that sleep while the trainer works: the calls and their order with a real server. A CPU frees no memory."""

import asyncio
import json
import urllib.request

import numpy as np
import pytest

from asyncrl.errors import AsleepError, InfrastructureError
from asyncrl.generation import MOVED, GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.router import EngineRouter
from asyncrl.services.engine.sleep import LoanSwitch, SleepSwitch
from asyncrl.train.policy import load_policy
from asyncrl.train.turns import MemoryTurns
from asyncrl.weights.files import write_weights
from tests.app_thread import free_port
from tests.credentials import AUTHORIZED, RUN
from tests.engines import serving
from tests.services.engine.test_engine_int8 import publish
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
            turns.to_others()
            states.append(("load", is_sleeping(engine_url)))
            return super().publish(version, engine)

        def commit(self, version):
            states.append(("commit", is_sleeping(engine_url)))
            return super().commit(version)

    class Checkpoints:
        error, write_s = "", 0.0

        def due(self, version):
            return version == 2

        def save_start(self, extra):
            states.append(("save start", is_sleeping(engine_url)))

        def versions(self):
            return []

        def save_due(self, version, extra, after):
            states.append(("save", is_sleeping(engine_url)))
            return 0.0

    engine = make_engine(tiny_model, 1)
    turns = MemoryTurns([engine], switch)
    switch(True)  # as the trainer does before it loads its model
    trainer = make_trainer(engine, Watched([groups_at(0), groups_at(1)]), 2, 0, schedule="synchronous")
    trainer.turns, trainer.checkpointer = turns, Checkpoints()
    assert trainer.run() == 2
    step = [("take", False), ("weights", True), ("load", False), ("commit", False)]
    assert states == [("save start", True), *step, *step, ("save", True)]
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


@pytest.fixture(scope="module")
def lent_engine(tiny_model, tmp_path_factory):
    """The address of an engine on loan, and its folder of weights."""
    weights = tmp_path_factory.mktemp("lent-weights")
    with serving(tmp_path_factory.mktemp("lent"), tiny_model, weights, lent=True) as engine:
        yield engine.url, weights


class Watched(EngineClient):
    """Keeps what the engine answered last."""

    last = None

    async def generate(self, request):
        self.last = await super().generate(request)
        return self.last


def greedy(name, tokens, **more):
    return GenerateRequest(name, np.arange(5, 25, dtype=np.int32), tokens, temperature=0.0, **more)


def test_an_engine_on_loan_serves_only_while_it_is_awake_and_what_it_cuts_goes_on_elsewhere(
    engine_url, engine_weights, lent_engine, tiny_model
):
    url, weights = lent_engine
    switch = LoanSwitch([url], RUN.bearer("engine"), 30.0)
    model = load_policy(tiny_model, "float32").model

    async def cut_turn(client, router):
        """Return a turn during which the engine on loan went to sleep, and where it was cut."""
        for attempt in range(50):
            turn = asyncio.ensure_future(router.generate(greedy(f"cut-{attempt}", 200, session="s")))
            while not turn.done() and not (await client.state())["running"]:
                await asyncio.sleep(0.01)
            assert (await asyncio.to_thread(switch, True)).tokens > 0
            found, part = await turn, router.engines[0].last
            if part.finish_reason == MOVED and 0 < len(part.token_ids) < 200:
                return found
            assert (await asyncio.to_thread(switch, False)).all_there
            await router.probe()
        raise AssertionError("no turn was cut")

    async def give(client, version):
        file = write_weights(weights, version, model.named_parameters(), 1)
        for path in ("weights/prepare", "weights/commit"):
            await client.request(path, file.to_json())

    async def scenario():
        # Other tests have given the shared engine other weights.
        version, other = await publish(engine_url, engine_weights, model)
        client = EngineClient(url)
        router = EngineRouter([Watched(url)])
        try:
            with pytest.raises(AsleepError):
                await client.generate(greedy("early", 4))
            await give(client, version)
            assert (await asyncio.to_thread(switch, False)).all_there
            await router.probe()
            # The first part goes to the engine on loan, which is the only one then.
            await router.generate(greedy("first", 4, session="s"))
            router.join(EngineClient(engine_url))
            moved = await cut_turn(client, router)
            whole = await other.generate(greedy("whole", 200))
            await give(client, version + 1)
            slept_through = await client.state()
            assert (await asyncio.to_thread(switch, False)).all_there
            woken = await client.state()
            newest = await client.generate(greedy("newest", 4, min_version=version + 1))
            return version, moved, whole, slept_through, woken, newest
        finally:
            await router.close()
            await client.close()
            await other.close()

    version, moved, whole, slept_through, woken, newest = asyncio.run(scenario())
    assert moved.token_ids.tolist() == whole.token_ids.tolist()
    np.testing.assert_allclose(moved.logprobs, whole.logprobs, atol=1e-4)
    assert (slept_through["asleep"], slept_through["version"]) == (True, version)
    assert (woken["asleep"], woken["version"]) == (False, version + 1)
    assert newest.versions.tolist() == [version + 1] * len(newest.token_ids)


def test_an_engine_that_is_not_on_loan_does_not_go_to_sleep_for_the_trainer(engine_url):
    with pytest.raises(InfrastructureError, match="not on loan"):
        LoanSwitch([engine_url], RUN.bearer("engine"), 30.0)(True)
