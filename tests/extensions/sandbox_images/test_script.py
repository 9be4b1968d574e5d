"""Scripts of an agent's on an image: what they make is seen by sessions, and whose fault it is when they fail."""

import asyncio
import json
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.sandbox_images import jail
from asyncrl.extensions.sandbox_images.dockerfile import Context, parse
from asyncrl.extensions.sandbox_images.jail import BuildLimits
from asyncrl.extensions.sandbox_images.script import script_run, variables
from asyncrl.extensions.sandbox_images.store import image
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import MIB, SandboxSpec
from tests.envs.test_swe_setup import unpacked

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
RECIPE = parse("FROM x\nWORKDIR /app\nRUN echo base > base && echo base > /srv/base", Context({}))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def ran(text, look="", **limits):
    """Run a script, and a command in a session of what it made; return both results."""

    async def whole():
        try:
            built = await image(RECIPE)
            async with script_run(built, "it.sh", text.encode(), BuildLimits(**limits)) as found:
                if not look:
                    return found, ""
                spec = SandboxSpec("bash", root=found.root, env=dict(built.env))
                async with await open_sandbox("bubblewrap", spec) as box:
                    return found, (await box.exec(["bash", "-c", look])).text
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def test_a_session_sees_what_the_script_made_and_the_image_stays_as_it_was(cache):
    text = "echo of $0 in $PWD; echo made > /srv/made; rm /srv/base; echo more >> base; export A=1 PYTEST_ADDOPTS=x"
    found, seen = ran(text, "cat /srv/made; ls /srv; id -u; touch /srv/x || echo no")
    assert (found.problem, found.output, found.variables) == ("", "of ./it.sh in /app", {"A": "1"})
    assert seen == "made\nmade\n1000\nno\n"
    assert unpacked(found.left) == {".": "", "./base": "base\nmore\n", "./it.sh": text}
    assert ran("true", "cat /srv/base; ls /srv")[1] == "base\nbase\n"
    # Nothing of a script is left when its block has ended.
    assert [path.name for path in cache.iterdir() if path.name.startswith("asyncrl-")] == []


@pytest.mark.parametrize(
    ("text", "limits", "problem"),
    [
        ("exit 4", {}, "it ended with status 4"),
        ("set -e; false; true", {}, "it ended with status 1"),
        ("trap '' TERM; sleep 300", {"timeout_s": 2.0}, "it was not done in time"),
        ("python3 -c 'b\"x\" * 10**9'", {"memory_bytes": 200 * MIB}, "it took too much memory"),
        ("head -c 50M /dev/zero > /srv/x; sleep 9", {"disk_bytes": 20 * MIB}, "more was written than fits"),
        (
            "rm -rf /work /dev/null; ln -s /etc /work; rm -r /opt; touch /opt",
            {},
            "/opt is no folder any more",
        ),
        ("rm -rf /app 2>/dev/null; mv /app /gone; touch /app", {}, "the work folder is broken"),
        ("rm -f /bin/tar /usr/bin/tar", {}, "the work folder is broken"),
        ("kill -9 $$", {}, "it ended with status 137"),
    ],
)
def test_what_a_script_does_to_itself_is_its_own_failure(text, limits, problem):
    found, _ = ran(text, **limits)
    assert found.problem.startswith(problem)


def test_a_machine_that_its_script_has_closed_to_others_opens_all_the_same():
    assert ran("chmod 700 / /tmp", "echo works")[1] == "works\n"


def test_more_processes_than_are_allowed_end_the_script(monkeypatch):
    monkeypatch.setattr(jail, "PROCESSES", 20)
    found, _ = ran("for i in $(seq 40); do sleep 300 & done; wait", timeout_s=60.0)
    assert found.problem == "it ended with status 137"


def test_a_host_that_does_not_answer_makes_no_scripts_failure_and_one_that_does_is_reached(tmp_path):
    (tmp_path / "page").write_text("fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    host = f"127.0.0.1:{server.server_address[1]}"
    Thread(target=server.serve_forever, daemon=True).start()
    code = json.dumps(f"import urllib.request as u; print(u.urlopen('http://{host}/page', timeout=9).read())")
    try:
        found, _ = ran(f"python3 -c {code}", allow_hosts=(host,))
        assert (found.problem, found.output) == ("", "b'fetched'")
        assert ran("exit 1", allow_hosts=(host,))[0].problem == "it ended with status 1"
        assert "it ended with" in ran(f"python3 -c {code}")[0].problem
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(
        InfrastructureError, match=r"a script failed, and its host 127\.0\.0\.1 cannot be reached"
    ):
        ran("exit 1", allow_hosts=(host,))
    assert ran("exit 0", allow_hosts=(host,))[0].problem == ""


def test_variables_are_those_that_a_script_has_changed_and_that_are_no_sessions():
    said = b"\0".join(
        [b"PATH=/x:/bin", b"HOME=/root", b"A=old", b"B=", b"PYTEST_PLUGINS=x", b"BASH_FUNC_a%%=() { x; }",
         b"LD_PRELOAD=x", b"LD_LIBRARY_PATH=/l", b"https_proxy=x", b"NO=\xff", b"not", b"MANY=a\nb=c", b""]
    )  # fmt: skip
    assert variables(said, {"PATH": "/bin", "A": "old"}) == {
        "PATH": "/x:/bin", "B": "", "LD_LIBRARY_PATH": "/l", "MANY": "a\nb=c",
    }  # fmt: skip
