"""Images kept by content: limits of a build, several processes, a killed builder, and what repositories keep."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.sandbox_images.dockerfile import Context, parse
from asyncrl.extensions.sandbox_images.jail import BuildLimits
from asyncrl.extensions.sandbox_images.scrub import SCRUB
from asyncrl.extensions.sandbox_images.store import image
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import MIB
from tests.extensions.sandbox_images.small_image import copy_programs
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")

BUILD = """
import asyncio, sys
from asyncrl.extensions.sandbox_images.dockerfile import Context, parse
from asyncrl.extensions.sandbox_images.store import image
from asyncrl.sandbox.jail.client import LauncherClient
async def main():
    print((await image(parse(sys.argv[1], Context({})))).work.read_bytes().count(b"made"), flush=True)
    await LauncherClient.close_shared()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def build(line, **limits):
    async def whole():
        try:
            return await image(
                parse(f"FROM x\nWORKDIR /app\n{line}", Context({})), limits=BuildLimits(**limits)
            )
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def test_run_lines_reach_the_hosts_that_are_named_in_an_image_that_has_no_python(tmp_path):
    (tmp_path / "page").write_text("fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    port = server.server_address[1]
    Thread(target=server.serve_forever, daemon=True).start()
    ask = (
        "exec 3<>/dev/tcp/127.0.0.1/3128; "
        f"printf 'GET http://127.0.0.1:{port}/%s HTTP/1.0\\r\\n\\r\\n' page >&3; cat <&3 > page"
    )
    recipe = parse(f'FROM x\nWORKDIR /app\nRUN ["/bin/bash", "-c", {json.dumps(ask)}]', Context({}))

    async def whole():
        try:
            limits = BuildLimits(allow_hosts=(f"127.0.0.1:{port}",))
            return await image(recipe, str(copy_programs(tmp_path / "base")), limits)
        finally:
            await LauncherClient.close_shared()

    try:
        assert b"fetched" in asyncio.run(whole()).work.read_bytes()
    finally:
        server.shutdown()
        server.server_close()


def other_process(text):
    return subprocess.Popen([sys.executable, "-c", BUILD, text], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("line", "limits", "reason"),
    [
        ("RUN python3 -c 'b\"x\" * 10**9'", {"memory_bytes": 200 * MIB}, "took too much memory"),
        (
            "RUN head -c 90000000 /dev/zero > /big; sleep 30",
            {"disk_bytes": 20 * MIB},
            "more was written than fits",
        ),
        ("RUN head -c 90000000 /dev/zero", {}, "ended with status"),
        ("RUN sleep 30 & sleep 30", {"timeout_s": 1.0}, "not done within the build's time"),
    ],
)
def test_a_build_has_limits_and_leaves_nothing_behind(cache, line, limits, reason):
    with pytest.raises(InfrastructureError, match=reason):
        build(line, **limits)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


def test_processes_that_want_one_image_build_it_once(cache):
    text = "FROM x\nWORKDIR /app\nRUN sleep 1; touch made-$(date +%N)"
    others = [other_process(text) for _ in range(3)]
    assert [other.communicate(timeout=120)[0].strip() for other in others] == ["1"] * 3
    assert len(list(cache.glob("*/image.json"))) == 1


def test_what_a_killed_builder_has_left_is_built_again(cache):
    text = "FROM x\nWORKDIR /app\nRUN test -e /tmp/never || sleep 3; touch made"
    first = other_process(text)
    wait_until(lambda: list(cache.glob("*.partial")), lambda: first.poll() is None)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = other_process(text)
    assert second.communicate(timeout=120)[0].strip() == "1"
    assert len(list(cache.glob("*/image.json"))) == 1 and not list(cache.glob("*.partial"))


def test_the_folder_of_images_is_for_its_user_alone(cache):
    build("RUN true")
    assert cache.stat().st_mode & 0o077 == 0


# -- repositories -----------------------------------------------------------------------------------------------


def git(folder, *words):
    names = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always"]
    return subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True, errors="replace"
    ).stdout


def commit(folder, text):
    (folder / "file").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", text)


def scrub(folder):
    subprocess.run(
        ["sh", "-c", SCRUB, str(folder)], check=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    )


def objects(folder):
    return git(folder, "cat-file", "--batch-all-objects", "--batch")


def repository(folder):
    folder.mkdir()
    git(folder, "init", "-qb", "main")
    for text in ("first", "start"):
        commit(folder, text)
    git(folder, "tag", "-m", "version", "v1", "HEAD~1")
    return folder


def ahead(folder):
    commit(folder, "answer")
    git(folder, "reset", "-q", "--hard", "HEAD~1")


def stashed(folder):
    (folder / "file").write_text("answer")
    git(folder, "stash")


def packed(folder):
    git(folder, "checkout", "-qb", "fix")
    commit(folder, "answer")
    git(folder, "checkout", "-q", "main")
    git(folder, "gc", "-q")
    git(folder, "branch", "-D", "fix")
    for pack in (folder / ".git/objects/pack").glob("*.pack"):
        pack.with_suffix(".keep").touch()


def noted(folder):
    git(folder, "notes", "add", "-m", "answer")


def other_worktree(folder):
    git(folder, "worktree", "add", "-qb", "fix", str(folder.with_name("other")))
    commit(folder.with_name("other"), "answer")


def cloned(folder):
    origin = folder.rename(folder.with_name("origin"))
    git(origin, "checkout", "-qb", "fix")
    commit(origin, "answer")
    git(origin, "checkout", "-q", "main")
    git(folder.parent, "clone", "-q", "--shared", str(origin), folder.name)


@pytest.mark.parametrize("future", [ahead, stashed, packed, noted, other_worktree, cloned])
def test_nothing_of_its_future_is_left_in_a_repository_and_its_past_is(tmp_path, future):
    folder = repository(tmp_path / "r")
    future(folder)
    scrub(tmp_path / "r")
    assert "answer" not in objects(folder)
    assert git(folder, "log", "--format=%s", "--all").split() == ["start", "first"]
    assert git(folder, "describe", "--tags", "HEAD~1").strip() == "v1"
    assert git(folder, "status", "--short") == "" and git(folder, "fsck") == ""
    assert not (folder / ".git" / "logs").exists()


def test_a_detached_head_and_a_repository_without_commits_are_kept(tmp_path):
    folder = repository(tmp_path / "r")
    git(folder, "checkout", "-q", "HEAD~1")
    scrub(tmp_path / "r")
    assert git(folder, "log", "--format=%s", "--all", "HEAD").split() == ["first"]
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    (empty / "file").write_text("staged")
    git(empty, "add", "-A")
    scrub(empty)
    assert "staged" in objects(empty)


def test_settings_of_a_repository_start_no_program_while_it_is_scrubbed(tmp_path):
    folder = repository(tmp_path / "r")
    git(folder, "config", "core.fsmonitor", f"touch {tmp_path}/ran")
    git(folder, "config", "core.hooksPath", str(tmp_path / "hooks"))
    scrub(tmp_path / "r")
    assert not (tmp_path / "ran").exists()
