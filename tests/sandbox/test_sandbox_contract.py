"""What every backend does alike."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, ConflictError, DeadlineError, InputError
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import Limits, Mount, ReadEnd, SandboxSpec
from tests.sandbox.conftest import run_async


def in_sandbox(backend, body, **spec):
    """Run `body(box)` in one session."""

    async def whole():
        async with await open_sandbox(backend, SandboxSpec(**spec), allow_unsafe=True) as box:
            return await body(box)

    return run_async(whole)


def test_a_program_gives_its_output_and_status(backend):
    async def body(box):
        return await box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])

    result = in_sandbox(backend, body)
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not (result.ok or result.timed_out or result.truncated or result.out_of_memory)
    assert result.wall_s > 0


def test_code_runs_in_the_specs_language_and_reads_its_input(backend):
    async def body(box):
        return await box.exec(code="print(sum(map(int, input().split())))", stdin=b"2 3 4\n")

    result = in_sandbox(backend, body)
    assert result.stdout == b"9\n", result
    assert result.ok


def test_input_of_a_megabyte_arrives_whole(backend):
    async def body(box):
        return await box.exec(["sh", "-c", "wc -c"], stdin=b"x" * 1_000_000)

    assert in_sandbox(backend, body).stdout.strip() == b"1000000"


def test_a_program_that_does_not_read_its_input_is_no_error(backend):
    async def body(box):
        return await box.exec(["sh", "-c", "echo done"], stdin=b"x" * 1_000_000)

    assert in_sandbox(backend, body).stdout == b"done\n"


def test_the_deadline_ends_a_program_and_keeps_what_it_wrote(backend):
    async def body(box):
        # On a busy machine a jail may need more than the first of them for its start.
        for limit_s in (1.5, 20.0):
            started = time.monotonic()
            result = await box.exec(["sh", "-c", "echo first; sleep 60"], timeout_s=limit_s)
            if result.stdout:
                break
        after = await box.exec(["sh", "-c", "echo again"])
        return result, time.monotonic() - started, after

    result, took, after = in_sandbox(backend, body)
    assert result.timed_out
    assert result.returncode == 137
    assert result.stdout == b"first\n"
    assert took < 30
    assert after.stdout == b"again\n"


def test_long_output_is_cut_at_the_bound_and_said_to_be(backend):
    async def body(box):
        program = "import sys; sys.stdout.write('a' * 300_000); sys.stderr.write('b' * 10)"
        return await box.exec(["python3", "-c", program], max_output_bytes=1000)

    result = in_sandbox(backend, body)
    assert result.stdout == b"a" * 1000
    assert result.stderr == b"b" * 10
    assert result.truncated


def test_a_missing_program_is_127(backend):
    async def body(box):
        return await box.exec(["no-such-program"])

    assert in_sandbox(backend, body).returncode == 127


def test_a_killed_program_is_128_and_the_signal(backend):
    async def body(box):
        return await box.exec(["sh", "-c", "kill -9 $$"])

    assert in_sandbox(backend, body).returncode == 137


def test_files_pass_in_and_out_and_stay_between_programs(backend):
    async def body(box):
        await box.write("folder/data.bin", bytes(range(256)))
        listing = await box.exec(["sh", "-c", "wc -c < folder/data.bin; echo made > made; ls"])
        return listing.stdout.split(), await box.read("folder/data.bin"), await box.read("made")

    listing, data, made = in_sandbox(backend, body)
    assert listing == [b"256", b"folder", b"made"]
    assert data == bytes(range(256))
    assert made == b"made\n"


def test_written_scripts_can_be_executed(backend):
    async def body(box):
        await box.write("script.sh", b"#!/bin/sh\necho ran $1\n")
        return await box.exec(["./script.sh", "it"])

    assert in_sandbox(backend, body).stdout == b"ran it\n"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "", ".", "a/../../x", "/workx/a", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(backend, path):
    async def body(box):
        with pytest.raises(InputError):
            await box.read(path)
        with pytest.raises(InputError):
            await box.write(path, b"x")

    in_sandbox(backend, body)


def test_links_missing_and_long_files_are_refused(backend):
    async def body(box):
        await box.exec(["sh", "-c", "ln -s /etc/hostname link; ln -s /etc folder; mkdir real"])
        await box.write("long", b"x" * 2000)
        for path in ("link", "folder/hostname", "missing", "real", "missing/file"):
            with pytest.raises(InputError):
                await box.read(path)
        with pytest.raises(InputError, match="long"):
            await box.read("long", max_bytes=1999)
        return await box.read("long", max_bytes=2000)

    if backend == "docker":
        pytest.skip("its test image has no ln; the attack suite covers links there")
    assert len(in_sandbox(backend, body)) == 2000


def test_a_persistent_program_keeps_its_state(backend):
    async def body(box):
        shell = await box.open_process(["bash"])
        await shell.send(b"value=41; cd /tmp; echo ready\n")
        first = await shell.read_until(b"ready\n", 20)
        await shell.send(b"echo $((value + 1)) in $PWD; echo end >&2\n")
        second = await shell.read_until(b"end\n", 20)
        nothing = await shell.read_until(b"never", 0.2)
        await shell.send(b"echo last; exit 7\n")
        rest = await shell.read_until(b"never", 20)
        return first, second, nothing, rest, await shell.wait(20)

    first, second, nothing, rest, status = in_sandbox(backend, body)
    assert (first.data, first.end) == (b"ready\n", ReadEnd.MARKER)
    assert (second.data, second.end) == (b"42 in /tmp\nend\n", ReadEnd.MARKER)
    assert (nothing.data, nothing.end) == (b"", ReadEnd.TIMEOUT)
    assert (rest.data, rest.end) == (b"last\n", ReadEnd.CLOSED)
    assert status == 7


def test_a_persistent_program_can_be_killed(backend):
    async def body(box):
        process = await box.open_process(["sleep", "100"])
        with pytest.raises(DeadlineError):
            await process.wait(0.2)
        await process.kill()
        await process.kill()
        return await process.wait(5)

    assert in_sandbox(backend, body) == 137


def test_reading_stops_at_the_bound(backend):
    async def body(box):
        process = await box.open_process(["sh", "-c", "echo 0123456789; sleep 30"])
        return await process.read_until(b"9", 20, max_bytes=4)

    result = in_sandbox(backend, body)
    assert (result.data, result.end) == (b"0123", ReadEnd.LIMIT)


def test_environment_and_folder_are_as_asked(backend, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "here")

    async def body(box):
        await box.write("sub/x", b"")
        seen = "os.environ.get('A'), os.environ.get('B'), os.listdir('.'), 'SECRET_OF_THE_HOST' in os.environ"
        code = f"import os; print({seen})"
        return await box.exec(["python3", "-c", code], env={"B": "2"}, cwd="/work/sub")

    assert in_sandbox(backend, body, env={"A": "1"}).stdout == b"1 2 ['x'] False\n"


def test_programs_of_one_session_run_side_by_side(backend):
    async def body(box):
        return await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.2; echo {i}"]) for i in range(6)))

    results = in_sandbox(backend, body)
    assert [result.stdout for result in results] == [f"{i}\n".encode() for i in range(6)]


def test_sessions_do_not_share_files(backend):
    async def body():
        async with (
            await open_sandbox(backend, allow_unsafe=True) as first,
            await open_sandbox(backend, allow_unsafe=True) as second,
        ):
            await first.write("mine", b"first")
            with pytest.raises(InputError):
                await second.read("mine")
            return (await second.exec(["ls"])).stdout

    assert run_async(body) == b""


def test_nothing_works_after_stop_which_may_be_repeated(backend):
    async def body():
        box = await open_sandbox(backend, allow_unsafe=True)
        process = await box.open_process(["sleep", "100"])
        await box.stop()
        await box.stop()
        assert await process.wait(10) != 0
        for call in (box.exec(["true"]), box.read("x"), box.write("x", b""), box.open_process(["true"])):
            with pytest.raises(ConflictError):
                await call

    run_async(body)


def test_mistakes_in_calls_are_named(backend):
    async def body(box):
        with pytest.raises(InputError, match="exactly one"):
            await box.exec(["true"], code="x")
        with pytest.raises(InputError, match="exactly one"):
            await box.exec()
        with pytest.raises(InputError, match="non-empty list"):
            await box.exec([])
        with pytest.raises(InputError, match="list of strings"):
            await box.exec("true")
        with pytest.raises(InputError, match="NUL"):
            await box.exec(["a\0b"])
        with pytest.raises(InputError, match="not below"):
            await box.exec(["true"], cwd="/etc")
        with pytest.raises(ConfigError, match="cobol"):
            await box.exec(code="x", language="cobol")
        with pytest.raises(ConflictError):
            await box.start(SandboxSpec())

    in_sandbox(backend, body)


def test_a_session_over_its_memory_is_ended_and_said_to_be(backend):
    if backend in ("docker", "subprocess"):
        pytest.skip("docker: this machine's engine may not use cgroups; subprocess: claims no memory limit")

    async def body(box):
        return await box.exec(
            code="import time\nx = bytearray(b'x') * (400 << 20)\ntime.sleep(5)", timeout_s=20
        )

    result = in_sandbox(backend, body, limits=Limits(memory_bytes=150 << 20, address_space_bytes=0))
    assert result.out_of_memory
    assert result.returncode == 137


@pytest.fixture
def shared_folder():
    """Reachable for every user: without namespaces a mount cannot lead around closed folders."""
    path = Path(tempfile.mkdtemp(prefix="asyncrl-test-"))
    path.chmod(0o755)
    (path / "data").write_text("shared")
    yield path
    shutil.rmtree(path)


def test_mounts_show_what_was_asked_read_only(backend, shared_folder):
    if backend == "subprocess":
        pytest.skip("takes no mounts")
    target = str(shared_folder) if backend == "landlock" else "/opt/data"

    async def body(box):
        script = f"cat {target}/data; echo x > {target}/new && echo WRITTEN"
        return await box.exec(["sh", "-c", script])

    result = in_sandbox(backend, body, mounts=(Mount(str(shared_folder), target),))
    assert result.stdout == b"shared", result
    assert not (shared_folder / "new").exists()
