"""What a program does to its own session is a result of the session, never a failure of the machinery."""

from __future__ import annotations

import asyncio

import pytest

from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from tests.sandbox.conftest import run_async

LIMITS = Limits(wall_s=10, disk_bytes=4 << 20, processes=12)
ALIVE = "print('alive')"
CLOSE = "import os; os.chmod('.', 0)"
FILL = """
import os
for number in range(100):
    try:
        with open(f"fill{number}", "wb", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass
    except OSError:
        pass
"""
REPLACE = """
import os, shutil
if os.path.exists("main.py"):
    os.unlink("main.py")
os.makedirs("main.py/below")
"""
SIGNAL_ALL = """
import os
for target in (0, -1, 1, os.getppid()):
    if os.fork() == 0:
        try:
            os.kill(target, 9)
        finally:
            os._exit(0)
    try:
        os.wait()
    except OSError:
        pass
os.kill(0, 9)
"""
CROWD = """
import os, time
try:
    while os.fork():
        pass
except OSError:
    print("full", flush=True)
time.sleep(2)
"""


def in_one_session(backend, *programs):
    """The results of Python programs, one after the other in one session."""

    async def body():
        async with await open_sandbox(backend, SandboxSpec(limits=LIMITS)) as box:
            return [await box.exec(code=program) for program in programs]

    return run_async(body)


def test_signalling_everything_in_reach_ends_the_program_only(walled):
    _, again = in_one_session(walled, SIGNAL_ALL, ALIVE)
    assert again.stdout == b"alive\n"


def test_a_folder_that_nobody_may_enter_any_more_fails_the_next_program(walled):
    closed, after = in_one_session(walled, CLOSE, ALIVE)
    assert closed.ok
    assert not after.ok
    assert b"Permission denied" in after.stderr


@pytest.mark.parametrize("harm", [FILL, REPLACE])
def test_a_full_disk_or_a_folder_in_the_programs_place_fails_the_next_program_at_most(walled, harm):
    harmed, after = in_one_session(walled, harm, ALIVE)
    assert harmed.returncode in (0, 137), harmed
    # The warm interpreter needs no file.
    assert after.stdout == b"alive\n" if walled == "zygote" else after.returncode == 126, after


def test_as_many_processes_as_are_allowed_fail_the_other_programs_of_the_session(walled):
    async def body():
        async with await open_sandbox(walled, SandboxSpec(limits=LIMITS)) as box:
            crowding = asyncio.create_task(box.exec(code=CROWD))
            await asyncio.sleep(1)
            during = await asyncio.gather(*(box.exec(code=ALIVE) for _ in range(4)))
            await crowding
            return during, await box.exec(code=ALIVE)

    during, after = run_async(body)
    # Where the last place is still free, a single process finds it.
    assert all(result.ok == (result.stdout == b"alive\n") for result in during)
    assert after.stdout == b"alive\n"
