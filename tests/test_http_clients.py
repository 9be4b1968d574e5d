"""No proxy stands between the processes of a run, and what is elsewhere is called as the environment says."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.doctor.command import check_proxy
from asyncrl.http_clients import async_client, client, exempt, exempting, goes_direct, open_url, set_proxies
from tests.app_thread import free_port

ROOT = Path(__file__).parent.parent
NOWHERE = "http://127.0.0.1:9"
ALONE = re.compile(
    r"urlopen\(|httpx\.(?:Async)?Client\(|requests\.(?:get|post|request|Session)\(|trust_env=True"
)
NETWORKS = {"NO_PROXY": "10.0.0.0/8, fd00::/8,.corp.example, judge:8000,192.168.1.7"}


@pytest.fixture
def proxy(monkeypatch):
    for name in list(os.environ):
        if "proxy" in name.lower():
            monkeypatch.delenv(name)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    return monkeypatch


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1", "http://127.9.9.9", "http://localhost:1", "http://LocalHost.:1", "https://[::1]:8000",
        "http://gateway.localhost:1", "http://[::ffff:127.0.0.1]:1", "http://0.0.0.0:8000",
    ],
)  # fmt: skip
def test_loopback_is_called_directly(url):
    assert goes_direct(url, {})


@pytest.mark.parametrize(
    "url", ["http://api.example/v1", "http://10.0.0.5", "http://128.0.0.1", "http://localhost.example"]
)
def test_what_is_elsewhere_is_called_as_the_environment_says(url):
    assert not goes_direct(url, {})
    assert goes_direct(url, {"NO_PROXY": "*"})


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        ("http://10.20.30.40:8000", True), ("http://11.0.0.1", False), ("http://[fd00::7]:80", True),
        ("http://a.corp.example", True), ("http://corp.example", True), ("http://notcorp.example", False),
        ("http://judge:8000/v1", True), ("http://judge:9000/v1", False), ("http://192.168.1.7:1", True),
    ],
)  # fmt: skip
def test_hosts_domains_ports_and_networks_are_exempt(url, direct):
    assert goes_direct(url, NETWORKS) is direct


def serve():
    """A server that answers every request, as a process of its own: its port."""
    code = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'here')\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), H)\n"
        "print(s.server_port, flush=True)\n"
        "s.serve_forever()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return child, int(child.stdout.readline())


def test_every_client_reaches_loopback_though_a_proxy_is_set(proxy):
    child, port = serve()
    url = f"http://127.0.0.1:{port}"

    async def ask():
        async with async_client(url, timeout=30.0) as http:
            return (await http.get(url)).text

    try:
        with open_url(url, 30.0) as answer:
            assert answer.read() == b"here"
        with client(url, timeout=30.0) as http:
            assert http.get(url).text == "here"
        assert asyncio.run(ask()) == "here"
        for name in ("ALL_PROXY", "all_proxy"):
            proxy.setenv(name, "socks9://nowhere")
        assert asyncio.run(ask()) == "here"
    finally:
        child.kill()
        child.wait()


def test_a_library_in_a_process_that_exempts_loopback_reaches_it(proxy):
    child, port = serve()
    code = (
        "import asyncrl.http_clients as c; c.exempt('10.1.2.3'); import urllib.request as u, httpx; "
        f"print(u.urlopen('http://127.0.0.1:{port}').read(), httpx.get('http://localhost:{port}').text)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        child.kill()
        child.wait()
    assert done.stdout == "b'here' here\n", done.stderr


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(proxy):
    for name in ("ALL_PROXY", "all_proxy"):
        proxy.setenv(name, "socks9://me:secret@nowhere:1")
    with pytest.raises(
        ConfigError, match=r"http://judge\.example: cannot be called through .*ALL_PROXY="
    ) as caught:
        client("http://judge.example")
    assert "secret" not in str(caught.value)


def test_a_list_of_exempt_hosts_keeps_what_it_had_and_gets_each_host_once(proxy):
    assert exempting("a, b") == "a,b,localhost,127.0.0.1,::1"
    assert exempting("localhost", "::1", "", "h") == "localhost,127.0.0.1,::1,h"
    proxy.setenv("NO_PROXY", "corp.example")
    exempt("10.0.0.1")
    exempt("10.0.0.1")
    assert os.environ["NO_PROXY"] == "corp.example,localhost,127.0.0.1,::1,10.0.0.1"
    assert os.environ["no_proxy"] == "localhost,127.0.0.1,::1,10.0.0.1"


def test_without_a_proxy_nothing_is_said_or_changed(proxy):
    for name in set_proxies():
        proxy.delenv(name)
    exempt("10.0.0.1")
    assert "NO_PROXY" not in os.environ
    assert check_proxy() == []


def test_doctor_says_that_a_proxy_is_set(proxy):
    for name in set_proxies():
        proxy.delenv(name)
    proxy.setenv("HTTPS_PROXY", "http://user:secret@proxy.corp:3128")
    ((line, problem),) = check_proxy()
    assert line.startswith("proxy HTTPS_PROXY=http://***@proxy.corp:3128: used for what is elsewhere")
    assert problem == ""


def test_no_client_that_reads_the_environment_is_made_elsewhere():
    made = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("asyncrl", "services", "envs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        # The packaged loop is a program by itself: inside its sandbox there is no asyncrl.
        if path.name not in ("http_clients.py", "bash_loop.py")
        and not any(parent.is_symlink() for parent in path.parents)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ALONE.search(line)
    ]
    assert made == []


def test_an_agents_command_reaches_the_gateway_though_its_settings_name_a_proxy():
    from asyncrl.extensions.agents.gateway.agents import CommandAgent, OpenEpisode

    last = "os.environ['NO_PROXY'].split(',')[-1]"
    show = f"import os, json; print(json.dumps({{'reward': float({last} == 'gate.example')}}))"
    agent = CommandAgent([sys.executable, "-c", show], {"HTTP_PROXY": NOWHERE})
    episode = OpenEpisode("e", "key", f"http://gate.example:{free_port()}")
    assert asyncio.run(agent.run({}, episode, 60.0)).reward == 1.0
