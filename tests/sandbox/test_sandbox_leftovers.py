"""Nothing stays: no process, uid, mount, descriptor or file, however the end comes."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.jail import proc
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.jail.uids import COUNT, UidPool, UidsExhausted, usable_range
from asyncrl.sandbox.protocol import SandboxSpec
from tests.sandbox.conftest import run_async

HELD = """
import asyncio
from asyncrl.sandbox.backends import open_sandbox
async def main():
    for name in ("bubblewrap", "zygote", "landlock", "subprocess"):
        box = await open_sandbox(name, allow_unsafe=True)
        process = await box.open_process(["sh", "-c", "echo up; sleep 1000 & sleep 1000"])
        await process.read_until(b"up\\n", 20)
    print("READY", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


NSJAIL_HELD = """
import asyncio
from asyncrl.sandbox.backends import open_sandbox
async def main():
    box = await open_sandbox("nsjail")
    process = await box.open_process(["sh", "-c", "echo up; sleep 1000"])
    await process.read_until(b"up\\n", 60)
    print("READY", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def made_by_nsjail() -> set[str]:
    """The folders on which nsjail mounts a root, wherever it may make them."""
    return {
        path
        for place in ("/run/user", "/run/user/*", "/tmp", "/dev/shm", tempfile.gettempdir())
        for path in glob.glob(f"{place}/nsjail*")
    }


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def state_of_host() -> tuple[list[str], int, list[str]]:
    with open("/proc/mounts") as file:
        mounts = file.read().splitlines()
    return (
        mounts,
        len(os.listdir("/proc/self/fd")),
        sorted(glob.glob(f"{tempfile.gettempdir()}/asyncrl-sandbox-*")),
    )


@pytest.mark.parametrize("backend", ["bubblewrap", "zygote", "nsjail", "landlock"])
def test_a_stopped_session_leaves_the_host_as_it_was(backend):
    before = state_of_host(), len(descendants())

    async def body():
        async with await open_sandbox(backend, SandboxSpec()) as box:
            await box.exec(code="open('file', 'w').write('x')")
            await box.open_process(["sh", "-c", "sleep 1000 & sleep 1000"])

    run_async(body)
    assert (state_of_host(), len(descendants())) == before


def test_nsjail_leaves_no_mount_points_on_the_host():
    before = made_by_nsjail()

    async def body():
        async with await open_sandbox("nsjail") as box:
            assert (await box.exec(["true"])).ok
            await box.open_process(["sleep", "1000"])
            return made_by_nsjail()

    assert run_async(body) <= before
    assert made_by_nsjail() <= before


def test_nor_do_they_stay_when_asyncrl_is_killed():
    before = made_by_nsjail()
    with subprocess.Popen([sys.executable, "-c", NSJAIL_HELD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "READY\n"
        holder.send_signal(signal.SIGKILL)
    assert made_by_nsjail() <= before


def test_many_sessions_at_once_all_work_and_all_go():
    before = state_of_host()

    async def body():
        boxes = await asyncio.gather(*(open_sandbox("bubblewrap") for _ in range(24)))
        await asyncio.gather(*(box.open_process(["sleep", "1000"]) for box in boxes))
        results = await asyncio.gather(*(box.exec(["sh", "-c", f"echo {i}"]) for i, box in enumerate(boxes)))
        assert [int(result.stdout) for result in results] == list(range(24))
        uids = {getattr(box, "_uid") for box in boxes}  # noqa: B009
        await asyncio.gather(*(box.stop() for box in boxes))
        launcher = await LauncherClient.shared()
        assert psutil.Process(launcher.process.pid).children(recursive=True) == []
        return uids

    uids = run_async(body)
    if os.geteuid() == 0:
        assert len(uids) == 24
    assert state_of_host() == before


def test_killing_asyncrl_ends_its_sandboxes():
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "READY\n"
        started = psutil.Process(holder.pid).children(recursive=True)
        assert len(started) > 8
        holder.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_killing_the_launcher_ends_its_programs_and_the_next_session_gets_another():
    async def body():
        box = await open_sandbox("bubblewrap")
        process = await box.open_process(["sh", "-c", "echo up; exec sleep 1000"])
        await process.read_until(b"up\n", 20)
        launcher = await LauncherClient.shared()
        programs = psutil.Process(launcher.process.pid).children(recursive=True)
        assert programs
        launcher.process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, programs, timeout=10)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
        with pytest.raises(Exception, match="launcher has ended"):
            await process.wait(5)
        await box.stop()
        async with await open_sandbox("bubblewrap") as other:
            assert (await other.exec(["true"])).ok

    run_async(body)


def test_the_launcher_imports_nothing_heavy():
    code = "import sys; from asyncrl.sandbox.jail import launcher; print(len(sys.modules), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    count, numpy = done.stdout.split()
    assert numpy == "False"
    assert int(count) < 150


needs_root = pytest.mark.skipif(usable_range() is None, reason="only root may change to other user ids")


@needs_root
def test_processes_never_share_a_uid_and_death_frees_it(tmp_path):
    code = f"""
import sys, time
from asyncrl.sandbox.jail.uids import UidPool
pool = UidPool(1000, 3, {str(tmp_path)!r})
print(pool.take(), pool.take(), flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = {int(part) for part in other.stdout.readline().split()}
        pool = UidPool(1000, 3, str(tmp_path))
        mine = pool.take()
        assert {mine} | theirs == {1000, 1001, 1002}
        with pytest.raises(UidsExhausted, match="all 3"):
            pool.take()
        pool.release(mine)
        assert pool.take() == mine
        other.kill()
    deadline = time.monotonic() + 5
    taken = {mine}
    while len(taken) < 3 and time.monotonic() < deadline:
        taken.add(pool.take())
    assert taken == {1000, 1001, 1002}
    pool.close()


def sleeping_as(uid: int) -> subprocess.Popen[str]:
    """A process of the uid, which its /proc entry hides, and a child of it in a process group of its own."""
    code = f"""
import ctypes, os, time
os.setresuid({uid}, {uid}, {uid})
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    print("up", flush=True)
time.sleep(1000)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@needs_root
def test_killing_a_user_id_ends_all_its_processes_and_no_other():
    first, _ = usable_range() or (0, 0)
    mine, other = first + COUNT - 1, first + COUNT - 2
    with sleeping_as(mine) as victim, sleeping_as(other) as bystander:
        assert victim.stdout is not None
        assert bystander.stdout is not None
        assert (victim.stdout.readline(), bystander.stdout.readline()) == ("up\n", "up\n")
        children = psutil.Process(victim.pid).children()
        assert proc.any_of_uid(mine)
        proc.kill_uid(mine)
        assert victim.wait(10) == -signal.SIGKILL
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []
        assert not proc.any_of_uid(mine)
        assert proc.any_of_uid(other)
        assert bystander.poll() is None
        proc.kill_uid(other)
        assert bystander.wait(10) == -signal.SIGKILL


@needs_root
def test_a_process_that_has_ended_counts_until_its_parent_has_noticed():
    first, _ = usable_range() or (0, 0)
    uid = first + COUNT - 3
    with sleeping_as(uid) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        proc.kill_uid(uid)
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        assert proc.any_of_uid(uid)
        victim.wait(10)


@pytest.mark.parametrize("uid", sorted({0, os.getuid()}))
def test_the_own_user_id_and_that_of_root_are_never_killed(uid):
    with pytest.raises(ValueError, match="not a sandbox's"):
        proc.kill_uid(uid)


@needs_root
def test_the_uid_range_is_wholly_usable():
    first, count = usable_range() or (0, 0)
    assert count == COUNT
    assert first > 1000


async def left_after_a_while(process, seconds=10):
    """The process's descendants once there are none, else those left after `seconds`. What cleans up comes and goes."""
    deadline = time.monotonic() + seconds
    while (left := process.children(recursive=True)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return left


def test_a_cancelled_stop_still_ends_the_session():
    async def body():
        box = await open_sandbox("bubblewrap")
        await box.open_process(["sleep", "1000"])
        stopping = asyncio.create_task(box.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        launcher = psutil.Process((await LauncherClient.shared()).process.pid)
        assert await left_after_a_while(launcher) == []
        await box.stop()
        assert await left_after_a_while(launcher) == []

    run_async(body)


def test_a_cancelled_exec_ends_its_program():
    async def body():
        async with await open_sandbox("bubblewrap") as box:
            running = asyncio.create_task(box.exec(["sleep", "1000"], timeout_s=500))
            launcher = psutil.Process((await LauncherClient.shared()).process.pid)
            while not launcher.children(recursive=True):
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await left_after_a_while(launcher) == []
            assert (await box.exec(["true"])).ok

    run_async(body, timeout_s=60)
