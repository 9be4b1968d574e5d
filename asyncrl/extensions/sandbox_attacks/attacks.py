"""The attack suite: hostile programs, and what must become of them.

Each attack is bounded in time, memory, disk and processes, and touches only loopback addresses and bait of its own,
so it does no harm if it succeeds. Attacks can succeed: plain subprocess fails most of them. An attack that could not
be carried out (no interpreter inside, say) is an error, never a pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from asyncrl.errors import AsyncRLError, DeadlineError, InputError
from asyncrl.extensions.sandbox_attacks import programs
from asyncrl.extensions.sandbox_attacks.scene import LIMITS, Inconclusive, Scene, leaks_in
from asyncrl.sandbox.backends import backend_class
from asyncrl.sandbox.jail import seccomp
from asyncrl.sandbox.protocol import MIB, Guarantee


async def network(scene: Scene) -> list[str]:
    host = scene.host
    result = await scene.run(
        programs.NETWORK,
        TCP=host.port("tcp"),
        UDP=host.port("udp"),
        ABSTRACT=host.token,
        PATH=host.folder / "socket",
    )
    await asyncio.sleep(0.05)
    reached = [f"{name} socket outside was reached" for name in host.reached]
    host.reached.clear()
    # An unconnected datagram is "sent" without anyone receiving it: only arrival counts.
    return [leak for leak in leaks_in(result) if leak != "udp"] + reached


async def host_files(scene: Scene) -> list[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [str(scene.host.folder), here, os.path.expanduser("~"), "/var/log", "/var/lib", "/boot", "/srv"]
    return leaks_in(await scene.run(programs.FILES, SECRET=scene.host.secret, FOLDERS=folders))


async def other_sessions(scene: Scene) -> list[str]:
    async with await scene.open() as first, await scene.open() as second:
        await first.write("secret", scene.host.token.encode())
        where = (await first.exec(code="import os; print(os.getcwd())")).text.strip()
        # The real path of its files, for backends that keep them on this host.
        path = getattr(first, "_path", "")
        folders = [os.path.dirname(path), path, f"{path}/work"] if path else []
        leaks = []
        for secret in {f"{where}/secret", f"{path}/work/secret"}:
            code = scene.fill(programs.FILES, SECRET=secret, FOLDERS=folders)
            leaks += leaks_in(await second.exec(code=code))
        return leaks


async def secrets(scene: Scene) -> list[str]:
    return leaks_in(
        await scene.run(programs.SECRETS, PIDS=[scene.host.victim.pid, os.getpid(), os.getppid()])
    )


async def descriptors(scene: Scene) -> list[str]:
    return leaks_in(await scene.run(programs.DESCRIPTORS))


async def other_processes(scene: Scene) -> list[str]:
    leaks = leaks_in(await scene.run(programs.OTHER_PROCESSES, VICTIM=scene.host.victim.pid))
    if scene.host.victim.poll() is not None:
        leaks.append("a process outside was killed")
        with contextlib.suppress(OSError):
            scene.host.victim = type(scene.host.victim)(
                ["/bin/sleep", "600"], env={"SECRET": scene.host.token}
            )
    return leaks


async def fork_bomb(scene: Scene) -> list[str]:
    allowed = LIMITS.processes + 16
    result = await scene.run(programs.FORK_BOMB, TRIES=300, ALLOWED=allowed)
    # Pages shared after a fork count once for each process, so as many as are allowed may reach the memory limit first.
    return leaks_in(result, must_end=not result.out_of_memory)


async def memory_bomb(scene: Scene) -> list[str]:
    wanted_mib = 2 * LIMITS.memory_bytes // MIB
    result = await scene.run(programs.MEMORY_ONE, BLOCKS=wanted_mib // 16)
    if result.returncode == 0 and "LEAK" not in result.text:
        raise Inconclusive(str(result))
    return leaks_in(result, must_end=False)


async def memory_bomb_many(scene: Scene) -> list[str]:
    each_mib = LIMITS.memory_bytes // MIB // 4
    result = await scene.run(programs.MEMORY_MANY, EACH_MIB=each_mib)
    if result.returncode == 0 and "LEAK" not in result.text:
        # Some children were refused memory and none was killed: this also counts as held.
        return []
    return leaks_in(result, must_end=False)


async def memory_hidden(scene: Scene) -> list[str]:
    wanted_mib = 2 * LIMITS.memory_bytes // MIB
    return leaks_in(await scene.run(programs.MEMORY_HIDDEN, WANTED_MIB=wanted_mib), must_end=False)


async def memory_of_semaphores(scene: Scene) -> list[str]:
    return leaks_in(await scene.run(programs.MEMORY_IPC, WANTED_MIB=2 * LIMITS.memory_bytes // MIB))


async def memory_of_sockets(scene: Scene) -> list[str]:
    result = await scene.run(programs.MEMORY_SOCKETS, WANTED_MIB=2 * LIMITS.memory_bytes // MIB)
    return leaks_in(result, must_end=not result.out_of_memory)


async def memory_of_page_tables(scene: Scene) -> list[str]:
    # As for languages whose runtimes reserve more address space than any limit would leave.
    # On a busy machine it takes longer than the other attacks may.
    async with await scene.open(address_space_bytes=0, wall_s=60) as box:
        wanted_mib = 2 * LIMITS.memory_bytes // MIB
        result = await box.exec(code=scene.fill(programs.MEMORY_TABLES, WANTED_MIB=wanted_mib))
    return leaks_in(result, must_end=not result.out_of_memory)


async def kernel_objects(scene: Scene) -> list[str]:
    """Named kernel objects must not exist for the next session."""
    key = random.SystemRandom().randint(1, 2**31 - 1)
    leaks_in(await scene.run(programs.IPC_LEAVE, KEY=key))
    return leaks_in(await scene.run(programs.IPC_FIND, KEY=key))


async def disk_fill(scene: Scene) -> list[str]:
    result = await scene.run(programs.DISK, LIMIT=LIMITS.disk_bytes)
    if result.returncode == 137:
        return []  # Ended by a watchdog where no file system can have a quota.
    return leaks_in(result)


async def many_files(scene: Scene) -> list[str]:
    result = await scene.run(programs.MANY_FILES, TRIES=60_000, LARGE=2 * LIMITS.file_bytes)
    return [] if result.returncode == 137 else leaks_in(result)


async def _endless(scene: Scene, program: str) -> list[str]:
    started = time.monotonic()
    result = await scene.run(program, timeout_s=1.0)
    took = time.monotonic() - started
    if result.timed_out and took < 8:
        return []
    if not result.timed_out:
        raise Inconclusive(f"ended by itself: {result}"[:600])
    return [f"a deadline of 1 s was kept after {took:.1f} s only"]


async def endless_loop(scene: Scene) -> list[str]:
    return await _endless(scene, programs.ENDLESS_LOOP)


async def endless_sleep(scene: Scene) -> list[str]:
    return await _endless(scene, programs.ENDLESS_SLEEP)


async def endless_output(scene: Scene) -> list[str]:
    result = await scene.run(programs.ENDLESS_OUTPUT, BLOCKS=2000)
    kept = max(len(result.stdout), len(result.stderr))
    if not result.truncated:
        return [f"250 MB of output came back as {kept} bytes without a word"]
    return [] if kept <= LIMITS.output_bytes else [f"{kept} bytes were kept, bound {LIMITS.output_bytes}"]


async def outside_writes(scene: Scene) -> list[str]:
    folders = [str(scene.host.open_folder), "/usr/local/bin", "/etc", "/var/tmp", "/dev", "/usr/lib", "/root"]
    leaks = leaks_in(await scene.run(programs.OUTSIDE_WRITES, FOLDERS=folders))
    return leaks + [f"left {name} in a folder outside" for name in os.listdir(scene.host.open_folder)]


async def system_calls(scene: Scene) -> list[str]:
    column = seccomp.MACHINES[platform.machine()].column
    numbers = {name: both[column] for name, both in (seccomp.REFUSED | seccomp.ABSENT).items()}
    newuser, newnet = 0x10000000, 0x40000000
    calls = [
        ("unshare", numbers["unshare"], (newuser,)),
        ("unshare of a network namespace", numbers["unshare"], (newnet,)),
        ("ptrace", numbers["ptrace"], (0, 0, 0, 0)),
        ("mount", numbers["mount"], (0, 0, 0, 0, 0)),
        ("umount2", numbers["umount2"], (0, 0)),
        ("chroot", numbers["chroot"], (0,)),
        ("setns", numbers["setns"], (-1, 0)),
        ("bpf", numbers["bpf"], (-1, 0, 0)),
        ("io_uring_setup", numbers["io_uring_setup"], (1, 0)),
        ("perf_event_open", numbers["perf_event_open"], (0, 0, -1, -1, 0)),
        ("keyctl", numbers["keyctl"], (0, -3, 0)),
        ("add_key", numbers["add_key"], (0, 0, 0, 0, -3)),
        ("userfaultfd", numbers["userfaultfd"], (1,)),
        ("open_by_handle_at", numbers["open_by_handle_at"], (-1, 0, 0)),
        ("memfd_create", numbers["memfd_create"], (0, 0)),
        ("clone3", numbers["clone3"], (0, 0)),
        ("an unknown call", 470, (-1, -1)),
        ("an Internet socket", seccomp.SOCKET[column], (seccomp.AF_INET, 1, 0)),
        ("a netlink socket", seccomp.SOCKET[column], (16, 3, 0)),
        ("a raw packet socket", seccomp.SOCKET[column], (17, 3, 0)),
        ("clone into a user namespace", seccomp.CLONE[column], (newuser | 17, 0, 0, 0, 0)),
    ]
    return leaks_in(await scene.run(programs.SYSTEM_CALLS, CALLS=calls))


async def daemons(scene: Scene) -> list[str]:
    # The unusual number of seconds identifies the process from outside.
    seconds = f"{random.SystemRandom().randint(40, 60)}.{random.SystemRandom().randint(10**6, 10**7)}"
    leaks = []
    async with await scene.open() as box:
        started = time.monotonic()
        result = await box.exec(code=scene.fill(programs.DAEMON, SECONDS=seconds))
        took = time.monotonic() - started
        leaks_in(result)
        await asyncio.sleep(0.2)
        if left := scene.host.processes_with(seconds):
            leaks.append("a detached process survived its exec")
        if took > 5:
            leaks.append(f"a detached process delayed the result by {took:.1f} s")
        process = await box.open_process(["sleep", seconds])
        with contextlib.suppress(DeadlineError):
            raise Inconclusive(f"the persistent process ended at once, status {await process.wait(1)}")
    await asyncio.sleep(0.1)
    if still := scene.host.processes_with(seconds):
        leaks.append("a process survived the session's stop")
        left += still
    scene.host.end(left)
    return leaks


async def episode_before(scene: Scene) -> list[str]:
    """A session that is passed on must be as new, whatever the programs of the episode before have done."""
    box = await scene.open()
    try:
        leaks_in(await box.exec(code=programs.LITTER))
        renewed = await box.renew()
    finally:
        await box.stop()
    if renewed is None:
        raise Inconclusive("the session was not passed on")
    async with renewed:
        return leaks_in(await renewed.exec(code=programs.LOOK))


async def marks_on_the_folder(scene: Scene) -> list[str]:
    """What a program sets on the folder itself must not be there for the next episode; a session may end for it."""
    box = await scene.open()
    try:
        leaks_in(await box.exec(code=programs.FLAGS))
        renewed = await box.renew()
    finally:
        await box.stop()
    if renewed is None:
        return []
    async with renewed:
        return leaks_in(await renewed.exec(code=programs.LOOK))


async def links(scene: Scene) -> list[str]:
    leaks = []
    async with await scene.open() as box:
        values = {"SECRET": scene.host.secret, "FOLDER": scene.host.open_folder, "SPARSE": 15 * MIB}
        leaks_in(await box.exec(code=scene.fill(programs.LINKS, **values)))
        reads = ["link", "chain", "folder/x", f"root{scene.host.secret}", "fifo", "hard", "sparse", ".", "..", "",
                 "../secret", str(scene.host.secret), "/work/../etc/passwd", "/workx/secret", "a\0b"]  # fmt: skip
        for path in reads:
            try:
                data = await asyncio.wait_for(box.read(path, max_bytes=MIB), 5)
            except InputError:
                continue
            except TimeoutError:
                leaks.append(f"reading {path!r} hangs")
                continue
            if scene.host.token.encode() in data or path in ("hard", "sparse"):
                leaks.append(f"reading {path!r} gave {len(data)} bytes")
        for path in ("target", "folder/written", f"root{scene.host.open_folder}/written", "../written",
                     str(scene.host.open_folder / "written"), "link"):  # fmt: skip
            with contextlib.suppress(InputError):
                await box.write(path, b"overwritten")
    if scene.host.secret.read_text() != scene.host.token:
        leaks.append("writing through a link changed a file outside")
        scene.host.secret.write_text(scene.host.token)
    for name in os.listdir(scene.host.open_folder):
        leaks.append(f"writing made {name!r} outside")
        (scene.host.open_folder / name).unlink()
    return leaks


async def link_race(scene: Scene) -> list[str]:
    leaks: list[str] = []
    attempts = 0
    async with await scene.open() as box:
        await box.write(
            "race.py", scene.fill(programs.LINK_RACE, FOLDER=scene.host.folder, SECONDS=3).encode()
        )
        process = await box.open_process(["python3", "race.py"])
        if not (await process.read_until(b"READY\n", 10)).data:
            raise Inconclusive("the racing program did not start")
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with contextlib.suppress(InputError):
                attempts += 1
                data = await box.read("real/secret")
                if scene.host.token.encode() in data:
                    leaks.append("a read followed a link that was swapped in")
            with contextlib.suppress(InputError):
                await box.write("real/written", b"x")
            await asyncio.sleep(0)
    if (scene.host.folder / "written").exists():
        leaks.append("a write followed a link that was swapped in")
        (scene.host.folder / "written").unlink()
    if not attempts:
        raise Inconclusive("no read was tried")
    return leaks[:3]


async def exhaustion(scene: Scene) -> list[str]:
    """Zombies, descriptors and user ids must not pile up over many runs and sessions."""
    before = len(os.listdir("/proc/self/fd"))
    sessions = max(2, scene.runs // 25)
    for _ in range(sessions):
        async with await scene.open() as box:
            for _ in range(scene.runs // sessions):
                result = await box.exec(code=programs.ORPHANS)
                if result.text != "OK\n":
                    return [f"a later run failed: {result}"[:600]]
    await asyncio.sleep(0.2)
    leaks = []
    if (after := len(os.listdir("/proc/self/fd"))) > before + 8:
        leaks.append(f"{after - before} descriptors are left open")
    zombies = [name for name in os.listdir("/proc") if name.isdigit() and _is_zombie_below_us(int(name))]
    if len(zombies) > 4:
        leaks.append(f"{len(zombies)} zombies are left")
    return leaks


def _is_zombie_below_us(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError, ValueError):
        own = os.getpid()
        state, parent = _state(pid)
        if state != "Z":
            return False
        while parent > 1:
            if parent == own:
                return True
            parent = _state(parent)[1]
    return False


def _state(pid: int) -> tuple[str, int]:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], int(fields[1])


@dataclass(frozen=True)
class Attack:
    name: str
    guarantee: Guarantee
    function: Callable[[Scene], Awaitable[list[str]]]
    own_kernel_only: bool = False
    """Does not apply to a backend whose system calls another kernel answers."""
    passed_on_only: bool = False
    """Applies only to a backend whose sessions are passed on to the next episode."""


ATTACKS = (
    Attack("network", Guarantee.NETWORK, network),
    Attack("host files", Guarantee.HOST_FILES, host_files),
    Attack("files of other sessions", Guarantee.HOST_FILES, other_sessions),
    Attack("environment and parents' /proc", Guarantee.HOST_SECRETS, secrets),
    Attack("inherited descriptors", Guarantee.HOST_SECRETS, descriptors),
    Attack("other processes", Guarantee.HOST_PROCESSES, other_processes),
    Attack("fork bomb", Guarantee.PROCESS_LIMIT, fork_bomb),
    Attack("memory bomb", Guarantee.MEMORY_LIMIT, memory_bomb),
    Attack("memory bomb of many processes", Guarantee.MEMORY_LIMIT, memory_bomb_many),
    Attack("memory outside of processes", Guarantee.MEMORY_LIMIT, memory_hidden),
    Attack("memory of semaphores", Guarantee.MEMORY_LIMIT, memory_of_semaphores),
    Attack("memory of socket buffers", Guarantee.MEMORY_LIMIT, memory_of_sockets),
    Attack("memory of page tables", Guarantee.MEMORY_LIMIT, memory_of_page_tables),
    Attack("disk, /tmp and /dev/shm fill", Guarantee.DISK_LIMIT, disk_fill),
    Attack("many files, large file", Guarantee.DISK_LIMIT, many_files),
    Attack("endless loop", Guarantee.TIME_LIMIT, endless_loop),
    Attack("endless sleep", Guarantee.TIME_LIMIT, endless_sleep),
    Attack("endless output", Guarantee.OUTPUT_LIMIT, endless_output),
    Attack("writes outside", Guarantee.HOST_FILES, outside_writes),
    Attack("namespaces and rare system calls", Guarantee.KERNEL_SURFACE, system_calls, own_kernel_only=True),
    Attack("daemonised leftovers", Guarantee.NO_LEFTOVERS, daemons),
    Attack("leftovers of the episode before", Guarantee.NO_LEFTOVERS, episode_before, passed_on_only=True),
    Attack("marks on the folder", Guarantee.NO_LEFTOVERS, marks_on_the_folder, passed_on_only=True),
    Attack("kernel objects of other sessions", Guarantee.NO_LEFTOVERS, kernel_objects),
    Attack("links and paths on read and write", Guarantee.HOST_FILES, links),
    Attack("links swapped while reading", Guarantee.HOST_FILES, link_race),
    Attack("exhaustion over many runs", Guarantee.NO_LEFTOVERS, exhaustion),
)


def attacks_on(backend: str, only: Sequence[str] = ()) -> list[Attack]:
    """The attacks that concern a backend, or those of them whose name contains one of `only`."""
    attacked = backend_class(backend)
    other_kernel = Guarantee.HOST_KERNEL in attacked.guarantees
    concern = [
        attack
        for attack in ATTACKS
        if not (other_kernel and attack.own_kernel_only) and (attacked.renews or not attack.passed_on_only)
    ]
    return [a for a in concern if not only or any(text in a.name for text in only)]


@dataclass(frozen=True)
class Finding:
    attack: Attack
    status: str
    """"held", "leaked" or "error" (the attack could not be carried out)."""
    details: tuple[str, ...]
    wall_s: float


async def carry_out(attack: Attack, scene: Scene) -> Finding:
    started = time.monotonic()
    try:
        leaks = await asyncio.wait_for(attack.function(scene), 600)
    except (Inconclusive, AsyncRLError, OSError, TimeoutError) as error:
        detail = f"{type(error).__name__}: {error}"
        return Finding(attack, "error", (detail,), time.monotonic() - started)
    return Finding(attack, "leaked" if leaks else "held", tuple(leaks), time.monotonic() - started)
