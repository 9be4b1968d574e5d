"""Malformed words about the job and its members: each is refused, and what the buffer knows stays as it was."""

import itertools

import msgpack
import pytest
import requests

from tests.buffer.serving import ThreadService
from tests.credentials import AUTHORIZED

URL = "http://127.0.0.1:9"
JOB = {"config": {"seed": 0}, "model": "m", "weights_dir": "w", "engines": [URL], "envs": [URL]}
CALLS = {
    "/v1/job": JOB,
    "/v1/join": {"role": "engine", "url": "http://127.0.0.1:8"},
    "/v1/leave": {"url": URL},
    "/v1/reclaim": {"worker": "w"},
    "/v1/reject": {"step": 0, "leases": ["1-1-ab"], "reason": "r"},
    "/v1/fail_taken": {"step": 0, "leases": ["1-1-ab"], "reason": "r"},
}
NEVER = [None, True, 1.5, float("nan"), b"", b"\xff", [[]], [None], [b"\xff"], {"a": b"\xff"}, 2**64 - 1]
"""Wrong for every field."""
WRONG = {
    "config": ["", [], {"x": float("inf")}, {"x": [float("nan")]}, {"x": 2**60}, {1: 2}],
    "model": ["", "x" * 5000, []],
    "weights_dir": ["x" * 5000, []],
    "engines": ["", [URL] * 5000, ["ftp://x"], [""], [URL, 1], {URL: URL}],
    "envs": ["", [URL] * 5000, ["file:///etc/passwd"], [URL + "x" * 600], {}],
    "role": ["", "trainer", "Engine", []],
    "url": ["", "127.0.0.1:9", "javascript:1", URL + "x" * 600, [URL], {}],
    "worker": ["", "x" * 300, [], {}],
    "step": [-1, 2**53, "0", [], {}],
    "leases": [[], "1-1-ab", ["x" * 300], [""], [1], {}],
    "reason": ["x" * 70_000, [], {}],
}
HOSTILE = [b"\x81" * 5000, b"\xdf\xff\xff\xff\xff", b"\xc7\x01\x05a", b"\xc1", b"{"]


def malformed():
    for path, body in CALLS.items():
        yield from ((path, raw) for raw in HOSTILE)
        whole = msgpack.packb(body)
        yield from ((path, whole[:end]) for end in range(1, len(whole)))
        for name, value in itertools.product(body, NEVER):
            yield path, msgpack.packb(body | {name: value})
        for name in body:
            yield path, msgpack.packb({key: value for key, value in body.items() if key != name})
            yield from ((path, msgpack.packb(body | {name: value})) for value in WRONG[name])
        for key, value in itertools.product(("x", "", "Url", 1, None, b"url"), (None, 1, "x", NEVER[3])):
            yield path, msgpack.packb(body | {key: value})


@pytest.fixture
def ask(tmp_path):
    service, connection = ThreadService(tmp_path), requests.Session()
    connection.headers.update(AUTHORIZED)

    def call(path, raw=None):
        if raw is None:
            return connection.get(service.url + path, timeout=30)
        kind = {"Content-Type": "application/msgpack"}
        return connection.post(service.url + path, data=raw, headers=kind, timeout=30)

    yield call
    connection.close()
    service.close()


@pytest.mark.slow
def test_malformed_words_are_refused_and_nothing_is_known_that_was_not(ask):
    for path in ("/v1/job", "/v1/join"):
        assert ask(path, msgpack.packb(CALLS[path])).status_code == 200
    before, count = [ask(path).json() for path in ("/v1/job", "/v1/status")], 0
    for path, raw in malformed():
        answer = ask(path, raw)
        assert 400 <= answer.status_code < 500, (path, raw[:200], answer.text[:300])
        assert answer.json()["error"]["message"]
        count += 1
    assert [ask(path).json() for path in ("/v1/job", "/v1/status")] == before
    assert count > 500
