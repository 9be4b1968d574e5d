"""Judges programs in sandboxes. What a program is compared with never enters its own sandbox.

| tests | how |
|---|---|
| `check`, a benchmark's own Python | runs in a second sandbox and calls the program in the first |
| calls with expected results | the program is called; its results are compared here |
| inputs and expected outputs | the program runs on each input; its output is compared here |

Time that a program takes, sleeping or not, is the program's. What exceeds its limit fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from asyncrl.agent_time import granted
from asyncrl.errors import ConflictError, DeadlineError
from asyncrl.extensions.program_rewards.packages import environment, mounts
from asyncrl.extensions.program_rewards.values import decode, encode
from asyncrl.rewards.protocol import NotJudged
from asyncrl.sandbox.backends import choose, open_sandbox, probe
from asyncrl.sandbox.protocol import MIB, Limits, ReadEnd, SandboxProcess, SandboxSpec

PROGRAM_CHARACTERS = 100_000
START_S = 60.0
"""Until an interpreter in a sandbox is ready; a busy machine takes its time."""
MESSAGE_BYTES = 8 * MIB
MEMORY_BYTES = 1024 * MIB
ADDRESS_BYTES = 4096 * MIB

PREAMBLE_MODULES = [
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
]
PREAMBLE = (
    "\n".join(f"from {name} import *" for name in PREAMBLE_MODULES)
    + "\nimport "
    + ", ".join(PREAMBLE_MODULES)
    + "\nsys.setrecursionlimit(50000)\n"
)
"""What LiveCodeBench puts before a program, so that programs need not import it."""
WRAPPED = """{preamble}
try:
    exec(compile({program!r}, "main.py", "exec"), globals())
except SystemExit:
    pass
"""
"""A program is run as LiveCodeBench runs it: to leave by exit() is to end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one program."""

    passed: tuple[bool, ...]
    """By test; shorter if the others were not run. A `check` is one test."""
    why: str = ""
    """What is wrong with the first test that failed."""


async def judge_check(
    program: str,
    check: str,
    *,
    prefix: str = "",
    functions: Sequence[str] = (),
    time_limit_s: float = 10.0,
    sandbox: str = "auto",
) -> Verdict:
    """Return whether `check` runs through without raising, on the functions that `program` defines after `prefix`.

    functions: the names that the tests are about, even if Python has them (MBPP tests a `sum`). time_limit_s: for all
    of it, from when both interpreters are ready. Raises `NotJudged` where the tests themselves are broken.
    """
    if (why := _unusable(program)) is not None:
        return Verdict((False,), why)
    async with AsyncExitStack() as stack:
        candidate, tests = await asyncio.gather(
            _start(stack, sandbox, "candidate_main.py"), _start(stack, sandbox, "tests_main.py")
        )
        ends = await stack.enter_async_context(_until(time_limit_s))
        why = await candidate.load(program, prefix, ends)
        if why:
            return Verdict((False,), why)
        await tests.send({"check": check, "prefix": prefix, "functions": list(functions)}, ends)
        while True:
            try:
                answer = await tests.receive(ends)
            except _Silent as error:
                # It waits for the program, or for what it made of its results: either is the program's.
                return Verdict(
                    (False,),
                    "time limit exceeded"
                    if error.timed_out
                    else "the tests ended with the program's results",
                )
            if "verdict" in answer:
                if answer["verdict"] in ("broken", "unsendable"):
                    raise NotJudged(f"{answer['why']}: not judged")
                return Verdict((answer["verdict"] == "passed",), answer["why"])
            try:
                reply = await candidate.ask(answer["ask"], ends)
            except _Silent as error:
                return Verdict((False,), str(error))
            await tests.send(reply, ends)


async def judge_calls(
    program: str,
    name: str,
    tests: Sequence[tuple[Sequence[Any], Any]],
    *,
    time_limit_s: float = 10.0,
    sandbox: str = "auto",
) -> Verdict:
    """Call the method `name` of the program's `Solution`, or its function, on the arguments of each test, in order.

    A result is right if it equals the expected one, a tuple as a list (LiveCodeBench's rule). time_limit_s: for each.
    A test that runs out of time is the last one run.
    """
    if (why := _unusable(program)) is not None:
        return Verdict((), why)
    async with AsyncExitStack() as stack:
        candidate = await _start(stack, sandbox, "candidate_main.py")
        async with _until(time_limit_s) as ends:
            why = await candidate.load(program, PREAMBLE, ends)
        if why:
            return Verdict((), why)
        passed: list[bool] = []
        for number, (arguments, expected) in enumerate(tests, 1):
            asked = {
                "id": number,
                "do": "method",
                "name": name,
                "args": [encode(one, _no_object) for one in arguments],
            }
            try:
                async with _until(time_limit_s) as ends:
                    reply = await candidate.ask(asked, ends)
            except _Silent as error:
                return Verdict((*passed, False), why or str(error))
            passed.append("value" in reply and _same_result(reply["value"], expected))
            if not passed[-1]:
                why = why or (": ".join(map(str, reply["error"])) if "error" in reply else "wrong result")
        return Verdict(tuple(passed), why)


async def judge_outputs(
    program: str, tests: Sequence[tuple[str, str]], *, time_limit_s: float = 10.0, sandbox: str = "auto"
) -> Verdict:
    """Run the program on each input, in order, and compare what it prints by `same_output`. See `judge_calls`."""
    if (why := _unusable(program)) is not None:
        return Verdict((), why)
    # A warm interpreter forks for each test.
    backend = (
        "zygote" if sandbox == "auto" and (await probe("zygote")).works else (await choose(sandbox)).backend
    )
    code = WRAPPED.format(preamble=PREAMBLE, program=program)
    async with await open_sandbox(backend, await _spec(backend)) as box:
        passed: list[bool] = []
        why = ""
        for given, expected in tests:
            result = await box.exec(code=code, stdin=given.encode(), timeout_s=time_limit_s)
            passed.append(result.ok and same_output(result.text, expected))
            if not passed[-1] and not why:
                last_line = result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
                why = "time limit exceeded" if result.timed_out else last_line or "wrong output"
            if result.timed_out:
                break
        return Verdict(tuple(passed), why)


def same_output(printed: str, expected: str) -> bool:
    """Return True if two outputs agree by LiveCodeBench's rule: line by line, without blanks, numbers as decimals."""
    left, right = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(left) == len(right) and all(
        one == other or _same_decimals(one, other) for one, other in zip(left, right, strict=True)
    )


def _same_decimals(one: str, other: str) -> bool:
    try:
        return [Decimal(word) for word in one.split()] == [Decimal(word) for word in other.split()]
    except InvalidOperation:
        return False


def _same_result(encoded: Any, expected: Any) -> bool:
    try:
        value = decode(encoded, lambda number: _Object())
        value = list(value) if isinstance(value, tuple) else value
        return bool(value == expected)
    except (ValueError, TypeError, RecursionError):
        return False


class _Object:
    """An object of the program, which equals nothing."""


def _no_object(value: Any) -> int:
    raise TypeError(f"a test passes an object of type {type(value).__name__}")


def _unusable(program: str) -> str | None:
    if not program.strip():
        return "no program"
    if len(program) > PROGRAM_CHARACTERS:
        return f"a program has at most {PROGRAM_CHARACTERS} characters"
    return None


class _Silent(Exception):
    """A process gave no line: it ended, or its time did."""

    def __init__(self, reason: str, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


@asynccontextmanager
async def _until(time_limit_s: float) -> AsyncIterator[float]:
    """Give a program so long, or what the environment's step grants; yield when that ends, in monotonic seconds."""
    async with granted(time_limit_s) as grant:
        yield time.monotonic() + grant.limit_s


class _Process:
    """One interpreter in a sandbox of its own, which answers in JSON lines."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process = process

    async def send(self, message: Any, ends: float) -> None:
        # One that has ended or does not read is found by the next `receive`.
        with contextlib.suppress(ConflictError, DeadlineError):
            await self._process.send(json.dumps(message).encode() + b"\n", max(0.01, ends - time.monotonic()))

    async def receive(self, ends: float) -> dict[str, Any]:
        """Return the next line. Raises `_Silent`."""
        try:
            read = await self._process.read_until(b"\n", max(0.01, ends - time.monotonic()), MESSAGE_BYTES)
        except DeadlineError:
            raise _Silent("time limit exceeded", timed_out=True) from None
        if read.end is not ReadEnd.MARKER:
            timed_out = read.end is ReadEnd.TIMEOUT
            ended = "said too much" if read.end is ReadEnd.LIMIT else "the program ended"
            raise _Silent("time limit exceeded" if timed_out else ended, timed_out)
        try:
            answer = json.loads(read.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise _Silent("the program wrote something else than its result")
        return answer

    async def load(self, program: str, preamble: str, ends: float) -> str:
        """Have it run a program's definitions; return what is wrong with them."""
        await self.send({"program": program, "preamble": preamble}, ends)
        try:
            answer = await self.receive(ends)
        except _Silent as error:
            return str(error)
        if answer.get("id") != 0 or "ok" not in answer:
            problem = answer.get("error")
            return (
                ": ".join(map(str, problem))
                if isinstance(problem, list)
                else "the program wrote something else"
            )
        return ""

    async def ask(self, asked: dict[str, Any], ends: float) -> dict[str, Any]:
        """Return the reply to a request. Raises `_Silent`."""
        await self.send(asked, ends)
        answer = await self.receive(ends)
        if answer.get("id") != asked["id"] or not {"value", "error", "missing"} & set(answer):
            raise _Silent("the program wrote something else than its result")
        error = answer.get("error")
        if error is not None and not (isinstance(error, list) and len(error) == 2):
            raise _Silent("the program wrote something else than its result")
        return answer


async def _start(stack: AsyncExitStack, sandbox: str, main: str) -> _Process:
    backend = (await choose(sandbox)).backend
    box = await stack.enter_async_context(await open_sandbox(backend, await _spec(backend)))
    process = _Process(await box.open_process(["python3", "-s", "-S", "-B", "-c", _source(main)]))
    try:
        await process.receive(time.monotonic() + START_S)
    except _Silent as error:
        raise NotJudged(f"an interpreter in the sandbox did not start: {error}") from None
    return process


@functools.cache
def _source(main: str) -> str:
    """Return a driver as one text, which brings along the module that it imports: no file of asyncrl is inside."""
    folder = Path(__file__).parent
    values, driver = (folder / "values.py").read_text(), (folder / main).read_text()
    name = "asyncrl.extensions.program_rewards.values"
    return (
        f"import sys, types\nmodule = sys.modules[{name!r}] = types.ModuleType({name!r})\n"
        f"exec(compile({values!r}, 'values.py', 'exec'), module.__dict__)\n{driver}"
    )


async def _spec(backend: str) -> SandboxSpec:
    limits = Limits(
        wall_s=START_S,
        cpu_s=120,
        memory_bytes=MEMORY_BYTES,
        address_space_bytes=ADDRESS_BYTES,
        output_bytes=MESSAGE_BYTES,
    )
    return SandboxSpec(
        language="python", limits=limits, mounts=await mounts(backend), env=environment(backend)
    )
