"""Engines that answer workers with garbage, or not at all: told on the terminal while the workers still try.

A turn is tried again for as long as an outage may take, which can be minutes. What is wrong would otherwise be in the
workers' logs alone until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.console import say
from asyncrl.credentials import authorization
from asyncrl.http_clients import open_url
from asyncrl.progress import clear_line

EVERY_S = 2.0
ANSWER_S = 2.0
AWAY_S = 5.0
"""An engine that does not answer is told of after so long: one that restarts refuses a few requests, too."""
AGAIN_S = 30.0
"""It is told of again after so long, then after twice as long each time."""
GARBAGE_ADVICE = (
    "another version of asyncrl or vLLM, broken memory, or something else that listens at its address: see its log, "
    "end it (the run starts its own engines again), or mend its machine"
)
AWAY_ADVICE = "see its log, and whether its machine can be reached from the workers"


class EngineTroubleReport:
    """Turns what workers say of engines into lines for the user. Pure.

    name: returns what an engine at an address is called, "" for one that the run itself is starting again, of which
    that has been told.
    """

    def __init__(self, name: Callable[[str], str] = lambda url: f"the engine at {url}") -> None:
        self._name = name
        self._shown: dict[str, tuple[float, float]] = {}
        """By address: when it was told of first, and when it is told of again."""

    def new_messages(self, by_worker: Mapping[str, Sequence[Mapping[str, Any]]], now: float) -> list[str]:
        """Return what these troubles, as `EngineRouter.troubles` lists them, say and has not been told.

        by_worker: of each worker that answered. now: monotonic seconds.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        for troubles in by_worker.values():
            for trouble in troubles:
                found.setdefault(trouble["url"], []).append(trouble)
        lines = [line for url, seen in found.items() if (line := self._line(url, seen, now))]
        if by_worker:
            lines += [self._over(url, now) for url in list(self._shown) if url not in found]
        return lines

    def _line(self, url: str, seen: Sequence[Mapping[str, Any]], now: float) -> str:
        garbage = [one for one in seen if one["garbage"]]
        shown = max(garbage or seen, key=lambda one: one["failures"])
        for_s, name = max(one["for_s"] for one in seen), self._name(url)
        first, due = self._shown.get(url, (now, now))
        if not name or now < due or not (garbage or for_s >= AWAY_S):
            return ""
        self._shown[url] = (first, now + max(AGAIN_S, 2 * (now - first)))
        failures, does = sum(one["failures"] for one in seen), "answers with garbage" if garbage else "fails"
        sound = min(one["sound_engines"] for one in seen)
        goes_on = f"the run goes on with {sound} other(s)" if sound else "nothing is sampled until that ends"
        return (
            f"{name} {does}: {failures} requests or probes of {len(seen)} worker(s) in {for_s:.0f} s; {goes_on}. "
            f"The last: {shown['error']}\n    -> {GARBAGE_ADVICE if garbage else AWAY_ADVICE}"
        )

    def _over(self, url: str, now: float) -> str:
        first, _ = self._shown.pop(url)
        return (
            f"{self._name(url) or url} serves requests again, or is no longer used, after {now - first:.0f} s"
        )


class EngineTroubles:
    """Asks workers every few seconds, and says what is new."""

    def __init__(self, token: str, report: EngineTroubleReport) -> None:
        """token: a bearer token for the workers."""
        self._token, self._report = token, report
        self._asked = float("-inf")
        self.listed: list[dict[str, Any]] = []
        """What all workers said the last time."""

    async def tick(self, workers: Sequence[str]) -> None:
        """Ask the workers at these addresses, if it is time to."""
        now = time.monotonic()
        if now - self._asked < EVERY_S:
            return
        self._asked = now
        answers = await asyncio.gather(*(asyncio.to_thread(self._ask, url) for url in workers))
        found = {url: answer for url, answer in zip(workers, answers, strict=True) if answer is not None}
        self.listed = [trouble for answer in found.values() for trouble in answer]
        for line in self._report.new_messages(found, time.monotonic()):
            clear_line()
            say(line)

    def _ask(self, url: str) -> list[dict[str, Any]] | None:
        request = urllib.request.Request(f"{url}/v1/status", headers=authorization(self._token))
        with contextlib.suppress(OSError, ValueError), open_url(request, ANSWER_S) as reply:
            found: list[dict[str, Any]] = json.loads(reply.read()).get("engine_troubles", [])
            return found
        return None
