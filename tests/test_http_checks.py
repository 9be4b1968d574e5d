"""What is refused before anything is built from it."""

import random
import time
import tracemalloc

import msgpack
import pytest

from asyncrl import http_checks
from asyncrl.data.codec import unpack
from asyncrl.errors import InputError
from asyncrl.http_checks import BodyCheck, Hosts, check_msgpack, refuse_headers


@pytest.mark.parametrize(
    ("bound", "header", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:80", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "LOCALHOST:9", True),
        ("::1", "[::1]:80", True),
        ("127.0.0.1", "10.0.0.5", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "10.0.0.5:80", True),
        ("0.0.0.0", "[fe80::1]:80", True),
        ("0.0.0.0", "evil.example", False),
        ("box.lan", "box.lan:80", True),
        ("0.0.0.0", "env.cluster", True),
    ],
)
def test_a_service_is_called_by_its_own_names_only(monkeypatch, bound, header, allowed):
    monkeypatch.setenv(http_checks.HOSTS_VARIABLE, "other, env.cluster")
    assert Hosts(bound).allow(header) is allowed


def test_a_body_without_a_known_type_is_refused_and_no_body_needs_none():
    host = (b"host", b"localhost")
    ours = Hosts("127.0.0.1")
    assert refuse_headers([host], ours) is None
    assert refuse_headers([host, (b"content-length", b"0")], ours) is None
    assert refuse_headers([host, (b"content-length", b"2")], ours).status == 415
    assert refuse_headers([host, (b"transfer-encoding", b"chunked")], ours).status == 415
    kind = (b"content-type", b"Application/JSON; charset=utf-8")
    assert refuse_headers([host, (b"content-length", b"2"), kind], ours) is None
    assert refuse_headers([host, (b"content-length", b"-2")], ours).status == 400
    assert refuse_headers([host, (b"origin", b"http://localhost")], ours).status == 403
    assert refuse_headers([host, (b"x", b"y" * 40_000)], ours).status == 431


def test_a_body_has_more_time_the_more_of_it_has_come(monkeypatch):
    now = 100.0
    monkeypatch.setattr(http_checks.time, "monotonic", lambda: now)
    check = BodyCheck(2**30, json=False)
    assert check.left_s == http_checks.FIRST_BYTES_S
    check.add(bytes(10 * http_checks.LEAST_BYTES_PER_S))
    assert check.left_s == http_checks.FIRST_BYTES_S + 10
    now = 200.0
    assert check.left_s == -60.0
    # This process did not run for a minute, which is not the sender's time. What it is late itself it may be once.
    assert check._excused() and check.left_s == http_checks.LOOK_AGAIN_S
    now += http_checks.LOOK_AGAIN_S
    assert not check._excused()
    now += 60.0
    assert check._excused()


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        b"\xdd\x01\x31\x2d\x00" + b"\x80" * 20_000_000,
        b"\x9f" + b"\xdd\x00\x4c\x4b\x40" * 4_000_000,
        b"\xdf\x00\x98\x96\x80" + b"\xa0\xc0" * 10_000_000,
        (b"\x9f" + b"\x9f" * 15) * 200_000,
    ],
    ids=["empty maps", "lists that announce more", "a map of nothing", "lists in lists"],
)
def test_many_small_values_are_refused_without_being_built(attack):
    """Twenty million empty maps in 20 MB took 1.6 GB and 3.5 s."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(InputError, match="must hold at most 1048576 values"):
            unpack(attack)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 20


def values(rng, depth=0):
    kind = rng.randrange(11 if depth < 3 else 9)
    if kind == 10:
        return {str(n): values(rng, depth + 1) for n in range(rng.choice([0, 3, 17]))}
    if kind == 9:
        return [values(rng, depth + 1) for _ in range(rng.choice([0, 3, 17]))]
    return [
        None, True, rng.choice([0, 127, 128, -1, -33, 2**16, -(2**20), 2**40, -(2**40)]), 1.5,
        "x" * rng.choice([0, 31, 32, 300, 70_000]), b"x" * rng.choice([0, 255, 300, 70_000]),
        msgpack.ExtType(3, b"1234"), msgpack.ExtType(3, b"x" * 300), [[0] * 66_000, dict.fromkeys("ab", 1)],
    ][kind]  # fmt: skip


@pytest.mark.slow
def test_the_look_ahead_counts_what_the_reader_builds(monkeypatch):
    monkeypatch.setattr(http_checks, "FREE_BYTES", 0)
    rng = random.Random(0)

    def count(value):
        if isinstance(value, dict):
            return 1 + sum(1 + count(inner) for inner in value.values())
        return 1 + sum(map(count, value)) if isinstance(value, list) else 1

    for _ in range(15):
        value = [values(rng) for _ in range(3)]
        body = msgpack.packb(value)
        monkeypatch.setattr(http_checks, "MAX_OBJECTS", count(value))
        check_msgpack(body)
        monkeypatch.setattr(http_checks, "MAX_OBJECTS", count(value) - 1)
        with pytest.raises(InputError):
            check_msgpack(body)
        monkeypatch.setattr(http_checks, "MAX_OBJECTS", 2**40)
        check_msgpack(body[: rng.randrange(len(body))])
