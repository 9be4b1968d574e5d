"""The process that compares expressions, and verdicts on answers.

A policy's answer may hang or kill what compares it: each comparison has a process and limits of its own
(`grader_main.py`), so that it costs nobody else more than a moment.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from asyncrl.extensions.answer_rewards.equality import Ask, needed, plan, settle
from asyncrl.helper_process import few_variables, not_ready
from asyncrl.machine import usable_cpus
from asyncrl.rewards.protocol import NotJudged

MAIN = Path(__file__).with_name("grader_main.py")
START_S = 120.0
"""How long it may make no progress before it is ready."""
SILENT_S = 120.0
"""Without any verdict while some are asked for: each comparison has far less than that, so the process is suspended or
hangs. It is ended, and what it was asked is not judged."""
WATCH_S = 5.0
SLOTS = max(2, usable_cpus())
REASONS = {
    "cut": "was cut off by its limits",
    "killed": "was killed by somebody else",
    "late": "got no CPU time",
}
MISSING = "the math grader did not start; is math-verify installed (pip install math-verify)?"

_UNDONE = re.compile(
    r"!|\\(?:i*int|oint|sum|prod|lim|binom|dbinom|tbinom|choose|bigcup|bigcap|cdots|ldots)(?![A-Za-z])|"
    r"\^\s?\{[^{}^]{0,40}\^|\^\s?\w+\s?\^|\^\s?\{?\s?\d{4,}|\^\s?\{?\s?\(|(?:\\sqrt\s?(?:\[[^\]]{0,5}\])?\s?\{?[^{}]{0,10}){8,}"
)
"""What leaves a computation to the reader: powers of powers, factorials, sums, integrals, roots of roots of roots."""


class Graders:
    """Verdicts on answers to math questions. Safe to use from many threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, tuple[subprocess.Popen[bytes], concurrent.futures.Future[str]]] = {}
        self._numbers = itertools.count()
        self._verdicts = 0
        atexit.register(self.close)

    async def judge(self, gold: str, answer: str) -> bool:
        """Return whether `answer` equals `gold`. Raises `NotJudged`."""
        wanted = plan(gold, answer)
        if isinstance(wanted, bool):
            return wanted
        asks = needed(wanted)
        futures = [await asyncio.to_thread(self._submit, ask) for ask in asks]
        verdicts = await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
        return self._settled(gold, answer, wanted, dict(zip(asks, verdicts, strict=True)))

    def equal(self, gold: str, answer: str) -> bool:
        """As `judge`, for threads."""
        wanted = plan(gold, answer)
        if isinstance(wanted, bool):
            return wanted
        asks = needed(wanted)
        futures = [self._submit(ask) for ask in asks]
        verdicts = {ask: future.result() for ask, future in zip(asks, futures, strict=True)}
        return self._settled(gold, answer, wanted, verdicts)

    def close(self) -> None:
        """End the process. The next comparison starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _settled(self, gold: str, answer: str, wanted: Any, verdicts: dict[Ask, str]) -> bool:
        known = {
            ask: {"true": True, "false": False, "own": False, "unread": False}.get(verdict)
            for ask, verdict in verdicts.items()
        }
        if (outcome := settle(wanted, known)) is not None:
            return outcome
        for ask, verdict in verdicts.items():
            # The question was whether this is the number, not what it comes to; the gold asks for no such thing.
            if verdict == "cut" and _is_undone(ask):
                known[ask] = False
        if (outcome := settle(wanted, known)) is not None:
            return outcome
        reason = next((REASONS[verdict] for verdict in REASONS if verdict in verdicts.values()), "failed")
        raise NotJudged(f"the comparison of answer {answer[:200]!r} with {gold[:200]!r} {reason}: not judged")

    def _submit(self, ask: Ask) -> concurrent.futures.Future[str]:
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        number = next(self._numbers)
        request = {
            "id": number,
            "op": "close" if ask.is_close else "equal",
            "gold": ask.gold,
            "answer": ask.answer,
            "patient": not _is_undone(ask),
        }
        with self._lock:
            process = self._running()
            self._asked[number] = process, future
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                # The reader says what became of those that were asked.
                pass
        return future

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-P", str(MAIN), str(SLOTS)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=few_variables(),
                start_new_session=True,
            )
            if why := not_ready(process, START_S):
                process.kill()
                process.wait()
                raise NotJudged(f"{MISSING} ({why})")
            self._process = process
            for work in (self._read, self._watch):
                threading.Thread(target=work, args=(process,), name="math grader", daemon=True).start()
        return self._process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End the process when it hangs. Time counts by what this thread has waited: it may be suspended itself."""
        silent_s, seen = 0.0, -1
        while process.poll() is None:
            time.sleep(WATCH_S)
            with self._lock:
                asked = any(asker is process for asker, _ in self._asked.values())
                silent_s = silent_s + WATCH_S if asked and seen == self._verdicts else 0.0
                seen = self._verdicts
            if silent_s >= SILENT_S:
                process.kill()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            reply = json.loads(line)
            with self._lock:
                asked = self._asked.pop(reply["id"], None)
                self._verdicts += 1
            if asked is not None and asked[1].set_running_or_notify_cancel():
                asked[1].set_result(reply["verdict"])
        with self._lock:
            lost = [number for number, (asker, _) in self._asked.items() if asker is process]
            futures = [self._asked.pop(number)[1] for number in lost]
            if self._process is process:
                self._process = None
        process.wait()
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(NotJudged("the math grader ended before its verdict: not judged"))


def _is_undone(ask: Ask) -> bool:
    """Whether the answer leaves a computation to the reader that the right answer does not."""
    return bool(_UNDONE.search(ask.answer)) and not _UNDONE.search(ask.gold)


GRADERS = Graders()
"""The graders of this process, started when it is first needed."""
