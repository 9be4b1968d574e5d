"""The prefill half of requests: batches of one kind at an engine, and what happens where it fails or is late."""

import asyncio

import numpy as np

from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.services.engine.prefill import Prefill
from asyncrl.services.engine.prefill_queues import Kind

NOTHING = np.zeros(1, np.int32)


class Engine:
    """Answers a batch when it is told to. It notes what it runs."""

    def __init__(self, url="http://prefill", failing=False):
        self.url = url
        self.failing = failing
        self.batches = []
        self.cancelled = []
        self.go = asyncio.Event()
        self._running = []

    async def generate(self, request):
        assert (request.prefill, request.max_tokens, request.seed) == (True, 1, None)
        if not self._running:
            self.batches.append(self._running)
        self._running.append(request.id)
        try:
            await self.go.wait()
            # The others of the batch come in the same pass.
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        finally:
            self._running = []
        if self.failing:
            raise InfrastructureError("it has died")
        return Generated(
            NOTHING, NOTHING.astype(np.float32), NOTHING, "length", ticket=f"to {request.id}".encode()
        )


def asked(prefill, name, kind, engine, tokens=100):
    request = GenerateRequest(name, NOTHING, 9, seed=7)
    return asyncio.ensure_future(prefill.ticket(request, kind, tokens, {engine.url: engine}))


def test_what_comes_while_an_engine_works_runs_in_batches_of_one_kind():
    async def scenario():
        engine, prefill = Engine(), Prefill()
        first = asked(prefill, "first", Kind.LONG, engine)
        await asyncio.sleep(0.05)
        kinds = {"a": Kind.SHORT, "b": Kind.LONG, "c": Kind.SHORT, "d": Kind.LONG, "e": Kind.SHORT}
        rest = [asked(prefill, name, kind, engine) for name, kind in kinds.items()]
        await asyncio.sleep(0.05)
        engine.go.set()
        found = await asyncio.gather(first, *rest)
        await prefill.close()
        return engine, prefill, found

    engine, prefill, found = asyncio.run(scenario())
    assert [sorted(batch) for batch in engine.batches] == [
        ["first/prefill"],
        ["a/prefill", "c/prefill", "e/prefill"],
        ["b/prefill"],
        ["d/prefill"],
    ]
    assert found[1] == (b"to a/prefill", engine.url, None)
    assert prefill.counts.handed == 6


def test_a_prefill_that_fails_or_is_late_gives_no_ticket_and_says_why():
    async def scenario():
        dead, slow = Engine("http://dead", failing=True), Engine("http://slow")
        dead.go.set()
        prefill = Prefill(late_s=0.05)
        failed, late = await asyncio.gather(
            asked(prefill, "f", Kind.LONG, dead), asked(prefill, "l", Kind.LONG, slow)
        )
        await asyncio.sleep(0.01)
        await prefill.close()
        return prefill.counts, failed, late, slow.cancelled

    counts, failed, late, cancelled = asyncio.run(scenario())
    assert (failed[0], late[0]) == (b"", b"")
    assert str(failed[2]) == "it has died"
    assert str(late[2]) == "engine http://slow: no prefill within 0.05 s"
    assert cancelled == ["l/prefill"]
    assert (counts.handed, counts.failed, counts.late) == (0, 1, 1)


def test_the_engine_with_the_fewest_tokens_to_compute_is_taken():
    async def scenario():
        one, two = Engine("http://1"), Engine("http://2")
        clients = {engine.url: engine for engine in (one, two)}
        prefill = Prefill()
        tasks = []
        for name, tokens in (("a", 900), ("b", 300), ("c", 500), ("d", 100)):
            request = GenerateRequest(name, NOTHING, 9)
            tasks.append(asyncio.ensure_future(prefill.ticket(request, Kind.LONG, tokens, clients)))
            await asyncio.sleep(0)
        one.go.set()
        two.go.set()
        found = await asyncio.gather(*tasks)
        await prefill.close()
        return [url for _, url, _ in found]

    # 900 | 300, then 900 | 800, then 900 | 900: the first in order.
    assert asyncio.run(scenario()) == ["http://1", "http://2", "http://2", "http://2"]
