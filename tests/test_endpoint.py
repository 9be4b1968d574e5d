"""Where a service serves is read whole or not at all."""

import json
import socket
import threading

import pytest
from psutil._ntuples import snicaddr

from asyncrl.endpoint import (
    advertised_host,
    announce,
    announced_url,
    in_url,
    wait_for_addresses,
    write_addresses,
)
from asyncrl.errors import ConfigError, DeadlineError

OWN = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "eth1": "10.1.0.1"}


def test_an_address_is_known_from_its_announcement_until_it_is_taken_back(tmp_path):
    ready = tmp_path / "service.json"
    assert announced_url(ready) == ""
    announce(ready, "http://127.0.0.1:9", pid=7)
    assert announced_url(ready) == "http://127.0.0.1:9"
    assert json.loads(ready.read_text()) == {"url": "http://127.0.0.1:9", "pid": 7}
    ready.unlink()
    assert announced_url(ready) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_meets_a_part_of_an_announcement(tmp_path):
    ready = tmp_path / "service.json"
    urls = {"", *(f"http://127.0.0.1:{port}" for port in range(300))}
    seen: set[str] = set()
    failed: list[Exception] = []
    end = threading.Event()

    def read():
        try:
            while not end.is_set():
                seen.add(announced_url(ready))
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for url in sorted(urls - {""}):
        announce(ready, url, pid=7)
        ready.unlink()
    end.set()
    reader.join(10)
    assert not failed and seen <= urls and not reader.is_alive()


def test_addresses_are_taken_as_given_or_waited_for_in_a_file(tmp_path):
    file = tmp_path / "engines.json"
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert wait_for_addresses(urls, 0.0) == urls
    threading.Timer(0.2, write_addresses, (file, urls)).start()
    assert wait_for_addresses([f"@{file}"], 30.0) == urls


def test_the_wait_for_addresses_ends_by_its_deadline(tmp_path):
    with pytest.raises(DeadlineError, match=r"no addresses were written to .*engines\.json within 0\.1 s"):
        wait_for_addresses([f"@{tmp_path}/engines.json"], 0.1)


@pytest.mark.parametrize(
    ("bound", "given", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("0.0.0.0", "node1", "node1"),
        ("10.0.0.5", "gate.example", "gate.example"),
    ],
)
def test_others_are_told_the_advertised_host_else_the_bound_one(bound, given, told):
    assert advertised_host(bound, given) == told


def test_a_machine_without_one_address_of_its_own_asks_for_a_name(monkeypatch):
    interfaces = {name: [snicaddr(socket.AF_INET, ip, None, None, None)] for name, ip in OWN.items()}
    monkeypatch.setattr("asyncrl.endpoint.ELSEWHERE", "no such address")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: interfaces)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1, 10\.1\.0\.1; name one with --advertise"):
        advertised_host("0.0.0.0")
    del interfaces["eth1"]
    assert advertised_host("0.0.0.0") == "10.0.0.1"


@pytest.mark.parametrize(
    ("host", "written"), [("2605:340::1", "[2605:340::1]"), ("10.0.0.1", "10.0.0.1"), ("node1", "node1")]
)
def test_an_ipv6_address_stands_in_brackets_in_a_url(host, written):
    # slime#859
    assert in_url(host) == written
