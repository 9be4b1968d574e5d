"""The buffer service against malformed, hostile and repeated messages: never a 5xx, never a change of state."""

import http.client
import json
import random
import time
from urllib.parse import urlsplit

import msgpack
import numpy as np
import pytest

from asyncrl.data import codec
from asyncrl.errors import InputError
from tests.buffer.factories import group, lease, tasks
from tests.buffer.serving import ThreadService
from tests.credentials import AUTHORIZED

FUZZ_REQUESTS = 10_000
CALLS = {
    "/v1/tasks": {"tasks": [{"id": "x", "env": "e", "seed": 0, "split": "train", "data": {}}]},
    "/v1/pool": {"tasks": [{"id": "x", "env": "e", "seed": 0, "split": "train", "data": {}}], "total": 0},
    "/v1/plan/close": {},
    "/v1/pause": {"paused": True},
    "/v1/staleness_limit": {"limit": 1},
    "/v1/opponents": {"versions": [3]},
    "/v1/judge/budget": {"client": "0" * 16, "requests": 1, "tokens": 0},
    "/v1/quarantine": {"worker": "w", "reason": "r"},
    "/v1/readmit": {"worker": "w"},
    "/v1/readmit_users": {"engine": "http://10.0.0.1:1"},
    "/v1/lease": {"worker": "w", "wait_s": 0},
    "/v1/renew": {"lease": "1-1-ab"},
    "/v1/release": {"lease": "1-1-ab"},
    "/v1/fail": {"lease": "1-1-ab", "failure": "environment", "error": ""},
    "/v1/put": {},
    "/v1/put_many": {"groups": [b""]},
    "/v1/reserve": {"count": 1},
    "/v1/put_files": {"files": [{"file": 0, "size": 1}]},
    "/v1/take": {"step": 0, "wait_s": 0},
    "/v1/peek": {"step": 0, "seen": [], "wait_s": 0},
    "/v1/drop": {"step": 0, "leases": [], "reason": "r"},
    "/v1/commit": {"version": 1},
    "/v1/rollback": {"version": 0},
}
NASTY = [
    None, True, -1, 2**53, 2**63, 2**64 - 1, 1e308, float("nan"), float("inf"), "", "x" * 70_000, "\x00", "🙂", b"",
    b"\xff",    [], {}, [[]] * 1000, {"a": {"a": {}}}, "1-1-ab", "9" * 40, ["id"], [None], {"id": None},
]  # fmt: skip
HOSTILE = [
    b"\x81" * 5000,
    b"\x91" * 5000,
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xffab",
    b"\xc7\x01\x05a",
]
"""Deep nesting, counts beyond the message, an extension type."""


class Caller:
    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)

    def __call__(self, path, body=b"", kind="application/msgpack", method="POST", headers=None):
        self.connection.request(method, path, body, AUTHORIZED | {"Content-Type": kind} | (headers or {}))
        answer = self.connection.getresponse()
        raw = answer.read()
        packed = answer.headers["content-type"] == "application/msgpack"
        return answer.status, msgpack.unpackb(raw) if packed else json.loads(raw)


@pytest.fixture
def service(tmp_path):
    served = ThreadService(tmp_path, lease_s=600.0)
    yield served
    served.close()


@pytest.fixture
def call(service):
    caller = Caller(service.url)
    yield caller
    caller.connection.close()


@pytest.fixture
def busy(service, call):
    """A service with pending, leased, ready and taken groups; returns what must not change."""
    service.ledger.add_tasks(tasks(8))
    leases = [lease(service.ledger, now=time.monotonic()) for _ in range(4)]
    for one in leases[:2]:
        service.ledger.put(group(one))
    service.ledger.take(0)
    service.ledger.put(group(leases[2]))
    return leases[3]


def status_of(call):
    return call("/v1/status", method="GET")[1]


def test_control_messages_may_be_json_or_msgpack(call):
    body = {"tasks": [codec.task_to_map(task) for task in tasks(2)]}
    assert call("/v1/tasks", json.dumps(body), "application/json") == (200, {"added": 2})
    assert call("/v1/tasks", msgpack.packb(body)) == (200, {"added": 0})
    got = call("/v1/lease", '{"worker": "w", "wait_s": 0}', "application/json")[1]
    assert (got["lease"]["task"]["id"], got["reason"]) == ("t0", "")


def test_a_lease_that_cannot_be_had_says_why(call):
    assert call("/v1/lease", msgpack.packb(CALLS["/v1/lease"])) == (
        200,
        {"lease": None, "reason": "no tasks"},
    )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/put", b"\xc1", 400),
        ("/v1/put", b"", 400),
        ("/v1/take", msgpack.packb({"step": 0}), 400),
        ("/v1/take", msgpack.packb({"step": 7, "wait_s": 0}), 409),
        ("/v1/commit", msgpack.packb({"version": 9}), 409),
        ("/v1/renew", msgpack.packb({"lease": "99-1-ab"}), 404),
        ("/v1/tasks", msgpack.packb({"tasks": [{"id": "x"}]}), 400),
        ("/v1/nowhere", b"", 404),
    ],
)
def test_each_refusal_has_its_status(call, path, body, status):
    got, answer = call(path, body)
    assert got == status
    assert answer["error"]["message"] if status != 404 else answer["error"]


def test_an_ended_lease_is_410_and_a_stale_token_409(service, call, busy):
    assert call("/v1/put", codec.encode_group(group(busy, versions=(5,))))[0] == 400
    service.ledger.commit(1)
    service.ledger.release(busy.id)
    status, answer = call("/v1/put", codec.encode_group(group(busy)))
    assert (status, answer["error"]["type"]) == (410, "ConflictError")
    young = lease(service.ledger, now=time.monotonic())
    assert young.version == 1
    status, answer = call("/v1/put", codec.encode_group(group(young, versions=(0,))))
    assert (status, answer["error"]["type"]) == (409, "StaleError")


def test_only_post_is_answered_on_the_hot_routes(call):
    assert call("/v1/put", method="GET")[0] == 405
    assert call("/v1/commit", method="GET")[0] == 405


def test_a_body_over_the_limit_is_413(call):
    caller = call
    assert caller("/v1/put", b"", headers={"Content-Length": str(2**40)})[0] == 413


def test_wrong_fields_are_named(call):
    got = call("/v1/take", msgpack.packb({"step": -1, "wait_s": "1", "x": 0}))[1]["error"]["message"]
    assert "step: Input should be greater than or equal to 0" in got
    assert "wait_s: Input should be a valid number" in got
    assert "x: Extra inputs are not permitted" in got


def test_metrics_count_what_the_status_counts(service, call, busy):
    call.connection.request("GET", "/metrics", headers=AUTHORIZED)
    text = call.connection.getresponse().read().decode()
    assert "asyncrl_buffer_ready 1.0" in text
    assert "asyncrl_buffer_in_flight 1.0" in text


def damaged_group(rng, one):
    """A valid group with one thing wrong that the codec, not the ledger, must see."""
    raw = codec.group_to_map(group(one))
    target = rng.choice([raw, raw["task"], rng.choice(raw["trajectories"])])
    name = rng.choice(sorted(target))
    if isinstance(target[name], dict) and "data" in target[name] and rng.random() < 0.7:
        array = target[name]
        array[rng.choice(["dtype", "shape", "data"])] = rng.choice(
            [
                "<f8",
                ">i4",
                "|O",
                [2**40],
                [-1],
                [3, 1],
                [1.5],
                b"",
                b"x" * 7,
                np.full(2, np.nan, "<f4").tobytes(),
                None,
            ]
        )
    elif rng.random() < 0.3:
        del target[name]
    else:
        target[name] = rng.choice([value for value in NASTY if value != target[name]])
    return raw


def codec_accepts(raw):
    """True when the damage made another valid group."""
    try:
        codec.group_from_map(raw)
    except InputError:
        return False
    return True


def fuzz_body(rng, path, one):
    """A malformed request for `path`."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return rng.choice(
            [
                b"\x81" * 5000,
                b"\x91" * 5000,
                b"\xdd\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xffab",
                b"\xc7\x01\x05a",
            ]
        )
    if path in ("/v1/put", "/v1/put_many"):
        while codec_accepts(raw := damaged_group(rng, one)):
            pass
        body = msgpack.packb(raw if path == "/v1/put" else {"groups": raw})
        return body[: rng.randrange(len(body))] if kind == 2 else body
    message = dict(CALLS[path])
    if not message or kind == 2:
        message["unknown"] = rng.choice(NASTY)
    else:
        name = rng.choice(sorted(message))
        message[name] = rng.choice(
            [b"\xff", None, [None], {"id": None}, {"a": {"a": {}}}, -1, 2**64 - 1, float("nan")]
        )
    return msgpack.packb(message)


@pytest.mark.slow
def test_malformed_messages_are_refused_and_change_nothing(call, busy):
    """Empty bodies are left out: `plan/close` takes none."""
    rng = random.Random(0)
    before = status_of(call)
    statuses = set()
    for number in range(FUZZ_REQUESTS):
        path = rng.choice(sorted(CALLS))
        body = fuzz_body(rng, path, busy)
        if not body:
            continue
        as_json = rng.random() < 0.2
        status, answer = call(path, body, "application/json" if as_json else "application/msgpack")
        statuses.add(status)
        assert 400 <= status < 500, (number, path, body[:200], answer)
    assert status_of(call) == before
    assert 400 in statuses
    assert call("/v1/put", codec.encode_group(group(busy)))[1]["outcome"] == "ready"


def test_json_that_python_reads_but_json_forbids_is_refused(call):
    before = status_of(call)
    for body in (
        b'{"worker": "w", "wait_s": NaN}',
        b'{"worker": "w", "wait_s": 1e999}',
        b'{"worker": "\\ud800", "wait_s": 0}',
        b'{"worker": "w", "wait_s": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"tasks": [{"id": "x", "env": "e", "seed": 0, "split": "", "data": {"x": NaN}}]}',
        b'{"tasks": [{"id": "x", "env": "e", "seed": 0, "split": "", "data": {"x": ' + b"9" * 400 + b"}}]}",
        b'{"tasks": [{"id": "x", "env": "e", "split": "", "data": {}, "seed": ' + b"9" * 4200 + b"}]}",
    ):
        path = "/v1/tasks" if b"tasks" in body else "/v1/lease"
        assert call(path, body, "application/json")[0] == 400, body[:80]
    assert status_of(call) == before
