"""The OpenEnv server against hostile requests and messages: see `tests.services.fuzzing`."""

import json
from collections import Counter
from socket import SHUT_RDWR

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.extensions.openenv.service import create_openenv_app
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, RUN
from tests.packages import needs
from tests.services import fuzzing
from tests.services.fuzzing import ANSWER_S, JSON, Fuzzed, Route
from tests.waiting import wait_until

needs("websockets")

ROUTES = [
    Route("GET", "/health"),
    Route("GET", "/metadata"),
    Route("GET", "/schema"),
    Route("POST", "/reset", {"seed": 1}, (JSON,), 16 * 2**20),
    Route("POST", "/step", {"message": "north"}, (JSON,), 16 * 2**20),
]
BEGIN = {"type": "reset", "data": {"seed": 1}}
RESET = {
    "type": "reset",
    "data": {"seed": 1, "episode_id": "e", "split": "train", "task_index": None, "data": {"size": 3}},
}
STEP = {
    "type": "step",
    "data": {
        "message": "north", "tool_calls": [{"name": "go", "arguments": {"way": "north"}}], "type": "call_tool",
        "tool_name": "go", "arguments": {"way": "north"}, "metadata": {},
    },
}  # fmt: skip
CODES = {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "SESSION_ERROR"}
CALLS = ["trainer", "worker", "gateway", "engine", "env", "guest", "old_policy", "peer"]


@pytest.fixture
def service(tmp_path):
    host = EnvHost(max_sessions=4)
    app = AppThread(create_openenv_app("gridworld", {}, host, RUN.access("openenv")), tmp_path)

    def works():
        with connect(fuzzed) as socket:
            assert say(socket, BEGIN)["type"] == "observation"
            assert say(socket, {"type": "step", "data": {"message": "north"}})["type"] == "observation"

    def state():
        return host.counts.opened, host.counts.steps

    fuzzed = Fuzzed(app.url, "openenv", ROUTES, state, works)
    yield fuzzed
    # What a socket had open is closed with it.
    wait_until(lambda: not host.sessions)
    app.close()


def connect(service, headers=AUTHORIZED):
    from websockets.sync.client import connect

    return connect(
        f"ws{service.url.removeprefix('http')}/ws", additional_headers=headers, open_timeout=ANSWER_S
    )


def say(socket, message):
    """Send a message, text or JSON, and return the answer."""
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(socket.recv(ANSWER_S), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_no_request_over_http_breaks_the_server(service):
    fuzzing.fuzz_bodies(service)
    fuzzing.fuzz_paths(service)
    fuzzing.fuzz_framing(service)


def test_nobody_without_the_right_token_opens_a_session(service):
    from websockets.exceptions import InvalidStatus

    fuzzing.fuzz_tokens(service, CALLS)
    before = service.state()
    for authorization in fuzzing.strangers(service, CALLS):
        if authorization.isprintable() and authorization.isascii():
            with pytest.raises(InvalidStatus, match="403"):
                connect(service, {"Authorization": authorization})
    assert service.state() == before


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service)
    for _ in range(5):
        with connect(service) as broken:
            say(broken, BEGIN)
            broken.socket.shutdown(SHUT_RDWR)
    with connect(service), connect(service):
        service.works()


@pytest.mark.slow
@pytest.mark.parametrize("right", [RESET, STEP], ids=["reset", "step"])
def test_every_message_is_answered_and_its_socket_lives_on(service, right):
    seen = Counter()
    with connect(service) as socket:
        for raw in fuzzing.json_bodies(right):
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                continue
            if right is STEP:
                say(socket, BEGIN)
            answer = say(socket, text)
            assert answer["type"] != "error" or answer["data"]["code"] in CODES, (text[:300], answer)
            seen[answer["type"]] += 1
        assert say(socket, BEGIN)["type"] == "observation"
    assert min(seen["error"], seen["observation"]) > 20


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b'{"type": "state"}', bytes(100_000)])
def test_bytes_are_no_message_and_are_answered_so(service, raw):
    with connect(service) as socket:
        assert say(socket, raw)["data"]["code"] == "INVALID_JSON"
        assert say(socket, {"type": "state"})["data"]["episode_id"] is None


@pytest.mark.parametrize("index", [2**31, 2**62, 2**70])
def test_a_task_that_nobody_can_count_to_is_refused_and_keeps_nobody_waiting(service, index):
    with connect(service) as socket:
        answer = say(socket, {"type": "reset", "data": {"task_index": index}})
        assert answer["data"]["code"] == "VALIDATION_ERROR"
        assert "task_index: must be at most" in answer["data"]["message"]
        service.works()
