"""Where a service serves is read whole or not at all."""

import json
import threading

import pytest

from asyncrl.endpoint import announce, announced_url, wait_for_addresses, write_addresses
from asyncrl.errors import DeadlineError


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
