"""The rollout worker against malformed requests: each is refused, nothing is started, and it goes on serving."""

import http.client
import json
import random
from collections import Counter
from urllib.parse import urlsplit

import msgpack
import pytest

from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, task_to_map
from asyncrl.env.host import EnvHost
from asyncrl.services.env.service import create_env_app
from asyncrl.services.rollout.service import MAX_BODY_BYTES, RolloutService, create_rollout_app
from asyncrl.types import Task
from tests.app_thread import AppThread
from tests.credentials import PACKED, RUN

REQUESTS = 3000
TASK = task_to_map(Task("a", "gridworld", 3))
BODY = {"tasks": [TASK], "samples": 2, "temperature": 1.0, "seed": 1}
HOSTILE = [
    b"", b"\xc1", b"\xc0", b"\x80", b"\x90", b"\x81" * 5000, b"\x91" * 5000, b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xffab", b"\xc7\x01\x05a", b"\xdf\xff\xff\xff\xff", b"{}", b'{"tasks": []}',
]  # fmt: skip
"""Nothing, a byte that begins nothing, deep nesting, counts beyond the message, an extension type, JSON."""
NO_TEXT = [None, True, 1, 1.5, float("nan"), [], {}, b"a"]
NO_INTEGER = [None, True, 1.5, float("nan"), "1", "", [], {}, b"\x01", 2**64 - 1]
WRONG = {
    "tasks": [
        None, True, 7, "", b"", {}, [], [None], [[]], [7], [{}], [TASK, None], [TASK] * 4097, {"0": TASK}, [[TASK]],
    ],
    "samples": [*NO_INTEGER, 0, -1, 1025, 2**53, -(2**63)],
    "temperature": [None, True, "1", b"1", [], {}, -1, -1e-9, 100.1, 2**64 - 1, float("nan"), float("inf"), -1e308],
    "seed": [True, 0.0, float("nan"), "1", b"", [], {}],
}  # fmt: skip
WRONG_TASK = {
    "id": [*NO_TEXT, "", "x" * 70_000],
    "env": [*NO_TEXT, "", "x" * 70_000],
    "seed": [*NO_INTEGER, -(2**63)],
    "split": NO_TEXT,
    "data": [None, True, 1, "", [], {"x": float("nan")}, {"x": b""}, {"x": 2**64 - 1}, {"x": {"x": float("inf")}}],
}  # fmt: skip
UNKNOWN = ["x", "", "Tasks", "sample", "\x00", "x" * 70_000, 1, -1, None, True, 1.5, b"tasks", b"\xff"]
"""Keys; those that are no text must be refused as well."""


def malformed(rng):
    """A request that is wrong for certain."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(HOSTILE)
    if kind == 1:
        whole = msgpack.packb(BODY)
        return whole[: rng.randrange(len(whole))]
    body, task = dict(BODY), dict(TASK)
    if kind == 2:
        holder = rng.choice([body, task])
        holder[rng.choice([key for key in UNKNOWN if key not in holder])] = rng.choice([None, 1, "x"])
        body["tasks"] = [task]
    elif kind == 3:
        name = rng.choice(sorted(WRONG_TASK))
        task[name] = rng.choice(WRONG_TASK[name])
        body["tasks"] = [TASK] * rng.randrange(3) + [task]
    elif kind == 4:
        holder, name = rng.choice([(body, "tasks"), *((task, name) for name in WRONG_TASK)])
        body["tasks"] = [task]
        del holder[name]
    else:
        name = rng.choice(sorted(WRONG))
        body[name] = rng.choice(WRONG[name])
    return msgpack.packb(body)


@pytest.fixture
def call(tiny_model, tmp_path):
    """A worker with a real environment service, whose engine cannot be reached: no refused request needs one."""
    config = parse_config(
        {
            "model": {"path": tiny_model},
            "env": {"name": "gridworld"},
            "engine": {"max_model_len": 256},
            "run": {"start_timeout_s": 0.05, "silence_timeout_s": 0.05},
        }
    )
    env = AppThread(create_env_app(EnvHost(), RUN.access("env")), tmp_path, "env")
    service = RolloutService(config, tiny_model, ["http://127.0.0.1:9"], [env.url], "", RUN, "worker")
    worker = AppThread(create_rollout_app(service, RUN.access("rollout")), tmp_path, "worker")
    connection = http.client.HTTPConnection(urlsplit(worker.url).netloc, timeout=60)

    def request(path, body=None, method="POST", headers=None):
        connection.request(method, path, body, PACKED | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield request
    connection.close()
    worker.close()
    env.close()


@pytest.mark.slow
def test_malformed_requests_are_refused_and_start_nothing(call):
    rng, seen = random.Random(0), Counter()
    before = call("/v1/status", method="GET")
    for number in range(REQUESTS):
        body = malformed(rng)
        status, answer = call("/v1/rollouts", body)
        assert status == 400, (number, status, body[:300], answer[:300])
        error = json.loads(answer)["error"]
        assert (error["type"], bool(error["message"])) == ("InputError", True)
        assert len(error["message"]) < 1000, error["message"][:300]
        seen[error["message"].partition(":")[0]] += 1
    assert call("/v1/status", method="GET") == before
    assert call("/healthz", method="GET")[0] == 200
    assert {"tasks", "samples", "temperature", "seed", "body"} <= set(seen)


@pytest.mark.slow
def test_a_worker_that_was_sent_nonsense_still_plays(call):
    for body in HOSTILE:
        assert call("/v1/rollouts", body)[0] == 400
    status, answer = call("/v1/rollouts", msgpack.packb(BODY))
    assert status == 200
    (group,) = [decode_group(one) for one in msgpack.unpackb(answer)["groups"]]
    assert [t.failure for t in group.trajectories] == ["infrastructure"] * 2


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("GET", "/v1/rollouts", {}, 405),
        ("DELETE", "/v1/status", {}, 405),
        ("POST", "/v1/nowhere", {}, 404),
        ("POST", "/v1/rollouts/../status", {}, 404),
        ("POST", "/v1/rollouts", {"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
        ("POST", "/v1/rollouts", {"X-Long": "a" * 33_000}, 431),
    ],
)
def test_other_methods_paths_and_sizes_are_refused_with_their_status(call, method, path, headers, expected):
    assert call(path, b"", method, headers)[0] == expected
