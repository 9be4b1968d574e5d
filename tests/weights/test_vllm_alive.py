"""An engine's server says at once for how long its core has owed an answer."""

import asyncio
import gc

import pytest

from asyncrl.weights import vllm_alive
from asyncrl.weights.vllm_alive import CoreWatch


class Core:
    """The core of an engine, as far as its server asks it."""

    def __init__(self):
        self.free, self.error, self.asked = asyncio.Event(), None, 0
        self.free.set()

    async def is_paused(self):
        self.asked += 1
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return False


def test_a_core_that_answers_is_not_silent_and_one_that_does_not_is_measured(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(vllm_alive.time, "monotonic", lambda: now[0])

    async def scenario():
        core, watch = Core(), CoreWatch()
        for _ in range(3):
            assert watch.look(core) == {"core_silent_s": 0.0}
            await asyncio.sleep(0)
            now[0] += 60.0
        core.free.clear()
        assert watch.look(core) == {"core_silent_s": 0.0}
        asked = core.asked
        await asyncio.sleep(0)
        now[0] += 30.0
        said = watch.look(core)
        # One question at a time, however often it is looked at.
        assert (said["core_silent_s"], core.asked) == (30.0, asked + 1)
        assert said["core_cpu_s"] >= 0.0 and said["core_bytes"] >= 0
        core.free.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watch.look(core) == {"core_silent_s": 0.0}

    asyncio.run(scenario())


def test_a_core_that_has_failed_is_no_core_that_answers():
    unseen = []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: unseen.append(context["message"])
        )
        core, watch = Core(), CoreWatch()
        core.error = RuntimeError("the core has died")
        watch.look(core)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="the core has died"):
            watch.look(core)

    asyncio.run(scenario())
    gc.collect()
    # The question that it asks instead fails, too, and nobody looks.
    assert unseen == []
