"""Services over HTTPS with certificates of a run's own CA."""

import asyncio
import socket
import ssl
import stat
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from asyncrl import __version__
from asyncrl.cli import main
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, ConflictError, UnavailableError
from asyncrl.extensions.machines.messages import Register
from asyncrl.extensions.machines.registry import Registry
from asyncrl.extensions.machines.spread import check_machines
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tls import client_context, make_certificates
from tests.buffer.serving import ThreadService


@pytest.fixture
def encrypted(tmp_path, monkeypatch, capsys):
    assert main(["tls", str(tmp_path / "tls"), "127.0.0.1", "node1.example"]) == 0
    own = tmp_path / "tls" / "127.0.0.1"
    assert capsys.readouterr().out.splitlines()[0] == f"export ASYNCRL_TLS={own}"
    monkeypatch.setenv("ASYNCRL_TLS", str(own))
    return tmp_path / "tls"


def status(url):
    async def ask():
        client = BufferClient(url, retry_s=0.0)
        try:
            return await client.status()
        finally:
            await client.close()

    return asyncio.run(ask())


def test_a_service_is_called_over_https_by_those_who_trust_its_ca(encrypted, tmp_path, monkeypatch):
    service = ThreadService(tmp_path)
    try:
        assert service.url.startswith("https://127.0.0.1:")
        assert status(service.url)["version"] == 0
        with urllib.request.urlopen(f"{service.url}/healthz", timeout=30, context=client_context()) as reply:
            assert reply.status == 200

        # Of another CA, whose certificates are for the same host.
        (other,) = make_certificates(tmp_path / "other", ["127.0.0.1"])
        monkeypatch.setenv("ASYNCRL_TLS", str(other))
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            status(service.url)
        # For another host than the one that is called.
        monkeypatch.setenv("ASYNCRL_TLS", str(encrypted / "127.0.0.1"))
        where = urlsplit(service.url)
        with (
            socket.create_connection((where.hostname, where.port), 30) as plain,
            pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
        ):
            client_context().wrap_socket(plain, server_hostname="node1.example")
        # In plain text.
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(service.url.replace("https", "http") + "/healthz", timeout=30)
    finally:
        service.close()


def test_keys_are_for_their_owner_only_and_the_ca_is_made_once(encrypted):
    for key in (encrypted / "ca.key", encrypted / "127.0.0.1" / "key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    ca = (encrypted / "ca.pem").read_bytes()
    (later,) = make_certificates(encrypted, ["10.0.0.9"])
    assert (later / "ca.pem").read_bytes() == ca
    context = ssl.create_default_context(cafile=encrypted / "ca.pem")
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "asyncrl run"),),)]


def test_what_would_go_unencrypted_is_refused(encrypted, monkeypatch):
    plain = Register(name="n1", url="http://10.0.0.1:1", version=__version__, boot="a", gpus=0, roles=["env"])
    with pytest.raises(
        ConflictError, match="node n1 is not encrypted, the launcher is; set ASYNCRL_TLS on it"
    ):
        Registry().register(plain)
    Registry().register(plain.model_copy(update={"url": "https://10.0.0.1:1"}))

    base = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
    check_machines(parse_config(base | {"engine": {"weight_transfer": "http"}}))
    for transfer, over in (("collective", "groups of torch.distributed"), ("nixl", "connections of UCX")):
        with pytest.raises(ConfigError, match=rf"engine\.weight_transfer: the {over} .* are not encrypted"):
            check_machines(parse_config(base | {"engine": {"weight_transfer": transfer}}))
    with pytest.raises(ConfigError, match=r"train\.nodes: .* are not encrypted"):
        check_machines(
            parse_config(base | {"engine": {"weight_transfer": "http"}, "train": {"ranks": 2, "nodes": 2}})
        )
    monkeypatch.setenv("ASYNCRL_TLS", str(encrypted))
    with pytest.raises(
        ConfigError, match=r"has no cert\.pem, key\.pem; make them with asyncrl tls FOLDER HOST"
    ):
        client_context()
