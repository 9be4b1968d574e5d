"""A warm session that is passed on is as new: nothing of the programs before is left, and nobody else can reach it."""

from __future__ import annotations

import asyncio
import contextlib
import os

import psutil
import pytest

from asyncrl.errors import ConflictError
from asyncrl.extensions.sandbox_attacks import programs
from asyncrl.extensions.sandbox_attacks.scene import leaks_in
from asyncrl.sandbox import idle
from asyncrl.sandbox.idle import IdleSessions
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from asyncrl.sandbox.zygote import ZygoteSandbox
from tests.sandbox.conftest import run_async, working

SPEC = SandboxSpec(limits=Limits(wall_s=10.0))


async def started(spec: SandboxSpec = SPEC) -> ZygoteSandbox:
    box = ZygoteSandbox()
    await box.start(spec)
    return box


async def seen_after(box: ZygoteSandbox) -> str:
    """Pass the session on and return what the next program says of what it finds."""
    renewed = await box.renew()
    assert renewed is not None
    async with renewed:
        return (await renewed.exec(code=programs.LOOK)).text


@pytest.fixture(autouse=True)
def zygote() -> str:
    return working("zygote")


def test_the_next_program_finds_a_new_folder_and_no_process():
    async def body():
        box = await started()
        assert (await box.exec(code=programs.LITTER)).ok
        return await seen_after(box)

    assert run_async(body) == "DONE\n"


def test_without_emptying_the_folder_the_same_look_finds_what_was_left():
    async def body():
        async with await started() as box:
            await box.exec(code=programs.LITTER)
            return leaks_in(await box.exec(code=programs.LOOK))

    found = run_async(body)
    names = ["a", "folder", "link", "pipe", "socket", "spy", "\udcff name"]
    assert {*(ascii(f"./{name}") for name in names), "the folder's mode"} == set(found)


def test_attributes_on_the_folder_do_not_reach_the_next_program():
    async def body():
        box = await started()
        await box.exec(code="import os; os.setxattr('.', 'user.note', b'1')")
        # Whether a memory file system takes attributes depends on the kernel.
        renewed = await box.renew() or await started()
        try:
            return (await renewed.exec(code="import os; print(os.listxattr('.'))")).text
        finally:
            await renewed.stop()
            await box.stop()

    assert run_async(body) == "[]\n"


FLAGS = {
    "do not dump": (0x40086602, 0x40),
    "no access times": (0x40086602, 0x80),
    "append only": (0x40086602, 0x20),
    "immutable": (0x40086602, 0x10),
}
SET_FLAG = "import fcntl, os, struct; fcntl.ioctl(os.open('.', os.O_RDONLY), {}, struct.pack('l', {}))"
SEE_FLAGS = """
import fcntl, os
try:
    print(fcntl.ioctl(os.open('.', os.O_RDONLY), 0x80086601, bytes(8)).hex())
except OSError:
    print("none")
"""


@pytest.mark.parametrize(("request_number", "flag"), FLAGS.values(), ids=list(FLAGS))
def test_flags_of_the_folder_do_not_reach_the_next_program(request_number, flag):
    async def body():
        box = await started()
        before = (await box.exec(code=SEE_FLAGS)).text
        # Which of them its owner may set depends on the kernel.
        await box.exec(code=SET_FLAG.format(request_number, flag))
        renewed = await box.renew() or await started()
        try:
            return before, (await renewed.exec(code=SEE_FLAGS)).text
        finally:
            await renewed.stop()
            await box.stop()

    before, after = run_async(body)
    assert before == after


def test_a_program_that_ran_out_of_time_does_not_reach_the_next_one():
    async def body():
        box = await started()
        assert (await box.exec(code="while True: pass", timeout_s=0.3)).timed_out
        return await seen_after(box)

    assert run_async(body) == "DONE\n"


def test_who_still_holds_the_session_before_cannot_use_it():
    async def body():
        box = await started()
        await box.exec(code="print(1)")
        renewed = await box.renew()
        assert renewed is not None
        try:
            for use in (box.exec(code="print(1)"), box.exec(["true"]), box.read("x"), box.write("x", b"")):
                with pytest.raises(ConflictError):
                    await use
            assert await box.renew() is None
            await box.stop()
            return (await renewed.exec(code="print(7)")).text
        finally:
            await renewed.stop()

    assert run_async(body) == "7\n"


async def run_argv(box: ZygoteSandbox) -> None:
    assert (await box.exec(["true"])).ok


async def run_shell(box: ZygoteSandbox) -> None:
    process = await box.open_process(["sh", "-c", "echo up; exec sleep 1000"])
    await process.read_until(b"up\n", 20)
    await process.kill()


async def write_tests(box: ZygoteSandbox) -> None:
    await box.judge().write({"test": b"x"})


async def write_many_files(box: ZygoteSandbox) -> None:
    assert (await box.exec(code="for i in range(1100): open(f'{i}', 'w').close()")).ok


async def lose_the_interpreter(box: ZygoteSandbox) -> None:
    launcher = psutil.Process((await LauncherClient.shared()).process.pid)
    for victim in launcher.children(recursive=True):
        # The others may end with the first.
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    while box.running:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "use",
    [run_argv, run_shell, write_tests, write_many_files, lose_the_interpreter],
    ids=lambda use: use.__name__,
)
def test_a_session_that_may_hold_more_than_its_folder_is_not_renewed(use):
    async def body():
        box = await started()
        await use(box)
        assert await box.renew() is None
        await box.stop()
        launcher = psutil.Process((await LauncherClient.shared()).process.pid)
        return launcher.children(recursive=True)

    assert run_async(body) == []


def test_a_session_with_a_running_program_is_not_renewed():
    async def body():
        box = await started()
        call = asyncio.create_task(
            box.exec(code="open('up', 'w'); import time; time.sleep(100)", timeout_s=200)
        )
        while (await box.exec(code="import os; print(os.path.exists('up'))")).text != "True\n":
            await asyncio.sleep(0.02)
        renewed = await box.renew()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await box.stop()
        return renewed

    assert run_async(body) is None


def test_a_session_goes_to_the_next_episode_with_an_equal_spec_only():
    async def body():
        sessions = IdleSessions.shared()
        first = await sessions.take(SPEC)
        await first.exec(code="open('mine', 'w')")
        await sessions.give_back(SPEC, first)
        other = await sessions.take(SandboxSpec(limits=Limits(wall_s=9.0)))
        again = await sessions.take(SandboxSpec(limits=Limits(wall_s=10.0)))
        numbers = [getattr(box, "_session") for box in (first, other, again)]  # noqa: B009
        await asyncio.gather(other.stop(), again.stop())
        return again is first, numbers

    assert run_async(body) == (False, [1, 2, 1])


def test_sessions_beyond_the_number_kept_and_those_nobody_takes_are_stopped(monkeypatch):
    async def body():
        sessions = IdleSessions.shared()
        launcher = psutil.Process((await LauncherClient.shared()).process.pid)
        boxes = [await sessions.take(SPEC) for _ in range(3)]
        one = len(launcher.children(recursive=True)) // 3
        for box in boxes:
            await sessions.give_back(SPEC, box)
        kept = len(launcher.children(recursive=True)) // one
        while launcher.children(recursive=True):
            await asyncio.sleep(0.02)
        return kept

    monkeypatch.setattr(idle, "MAX_IDLE", 2)
    monkeypatch.setattr(idle, "IDLE_S", 0.5)
    assert run_async(body, timeout_s=60) == 2


def test_a_session_whose_launcher_has_died_is_replaced():
    async def body():
        sessions = IdleSessions.shared()
        box = await sessions.take(SPEC)
        await sessions.give_back(SPEC, box)
        launcher = await LauncherClient.shared()
        launcher.process.kill()
        while not launcher.closed:
            await asyncio.sleep(0.01)
        other = await sessions.take(SPEC)
        try:
            return (await other.exec(code="print(7)")).text
        finally:
            await other.stop()

    assert run_async(body) == "7\n"


def test_idle_sessions_of_an_ended_loop_leave_no_descriptor():
    async def one_idle():
        box = await IdleSessions.shared().take(SPEC)
        await IdleSessions.shared().give_back(SPEC, box)

    async def none():
        IdleSessions.shared()

    run_async(none)
    before = len(os.listdir("/proc/self/fd"))
    run_async(one_idle)
    run_async(none)
    assert len(os.listdir("/proc/self/fd")) == before
