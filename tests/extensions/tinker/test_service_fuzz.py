"""The server for Tinker's SDK against hostile requests: see `tests.services.fuzzing`."""

import json
import sqlite3
from contextlib import closing

import pytest

from asyncrl.extensions.tinker import server as module
from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.clients import ClientAccess
from asyncrl.extensions.tinker.database import FILE
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.links import links_of
from asyncrl.extensions.tinker.policies import BaseModel
from asyncrl.extensions.tinker.progress import Progress
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.server import Server
from asyncrl.extensions.tinker.service import MAX_BODY_BYTES, create_tinker_app
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.waiting import Answers
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, RUN
from tests.services import fuzzing
from tests.services.fuzzing import JSON, Fuzzed, Route

API = "/api/v1"
SESSION = "0" * 32
POLICY, SAMPLER = f"{SESSION}:train:0", f"{SESSION}:sample:0"
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}


def post(path, /, **body):
    return Route("POST", f"{API}/{path}", body, (JSON,), MAX_BODY_BYTES)


# Those that a policy carries out stand before the one that makes it: what is done in between is no refusal's doing.
ROUTES = [
    post("client/config", sdk_version="1"),
    post("session_heartbeat", session_id=SESSION),
    post("get_info", model_id=POLICY),
    post("unload_model", model_id=POLICY),
    Route("POST", f"{API}/sessions/ID/finish"),
    post("weights_info", tinker_path=f"tinker://{POLICY}/weights/one"),
    post("retrieve_future", request_id=f"{POLICY}/1"),
    post("cancel_future", request_id=f"{SAMPLER}/1"),
    post("optim_step", model_id=POLICY, seq_id=900, adam_params={"learning_rate": 0.1}),
    post("save_weights", model_id=POLICY, seq_id=901, path="one", ttl_seconds=60),
    post("save_weights_for_sampler", model_id=POLICY, seq_id=902, sampling_session_seq_id=1),
    post("load_weights", model_id=POLICY, seq_id=903, path=f"tinker://{POLICY}/weights/one", optimizer=True),
    post("save_weights_external", model_id=POLICY, seq_id=904, path="one", ttl_seconds=3600),
    post("create_model", session_id=SESSION, model_seq_id=0, base_model="tiny", lora_config={"rank": 2}),
    post("create_sampling_session", session_id=SESSION, sampling_session_seq_id=0, base_model="tiny"),
    post("asample", sampling_session_id=SAMPLER, seq_id=1, prompt=PROMPT, sampling_params={"max_tokens": 2}),
    Route("GET", f"{API}/training_runs"),
    Route("GET", f"{API}/training_runs/ID"),
    Route("GET", f"{API}/training_runs/ID/checkpoints"),
    Route("DELETE", f"{API}/training_runs/ID/checkpoints/weights/ID"),
    Route("POST", f"{API}/training_runs/ID/checkpoints/weights/ID/publish"),
    Route("DELETE", f"{API}/training_runs/ID/checkpoints/weights/ID/publish"),
    Route("GET", f"{API}/training_runs/ID/checkpoints/external_weights/ID/external_weights_urls"),
    Route("GET", f"{API}/files", open=True),
    post("copy_weights", source_path=f"tinker://{POLICY}/weights/one", destination_project_id="p"),
    Route("GET", f"{API}/samplers/ID"),
    Route("GET", f"{API}/sessions/ID"),
    Route("GET", "/state"),
    Route("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def base(tiny_model):
    return BaseModel(tiny_model, "float32", most_tokens=64)


@pytest.fixture
def service(base, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    ledger, answers = Ledger(tmp_path / "state"), Answers()
    training = Training(base, Checkpoints(tmp_path / "state", ledger), answers, "tiny", 8, 2)
    ledger.add_session(SESSION, {"user_metadata": None, "display_name": None})
    server = Server(training, Sampling(ledger, answers, base.context), answers, "")
    app = AppThread(
        create_tinker_app(
            server, ClientAccess(RUN, {}), links_of(RUN), Progress(server, tmp_path / "state", "tiny"), None
        ),
        tmp_path,
    )

    def works():
        headers = [*AUTHORIZED.items(), ("Content-Type", JSON)]
        status, answer = fuzzed.ask(
            "POST", f"{API}/session_heartbeat", b'{"session_id": "%s"}' % SESSION.encode(), headers
        )
        assert (status, json.loads(answer)) == (200, {"type": "session_heartbeat"})

    def state():
        with closing(sqlite3.connect(tmp_path / "state" / FILE)) as database:
            tables = ("requests", "sessions", "samplers", "checkpoints")
            return [database.execute(f"SELECT COUNT(*) FROM {name}").fetchone() for name in tables]

    fuzzed = Fuzzed(app.url, "tinker", ROUTES, state, works)
    yield fuzzed
    app.close()
    for policy in training.active.values():
        policy.remove()
    ledger.close()


@pytest.mark.slow
def test_no_body_breaks_the_server_and_none_that_is_refused_changes_a_policy(service):
    fuzzing.fuzz_bodies(service)


def test_other_types_sizes_and_methods_are_refused(service):
    fuzzing.fuzz_framing(service)
    fuzzing.fuzz_paths(service)


def test_nobody_without_the_right_token_gets_or_changes_anything(service):
    fuzzing.fuzz_tokens(service, ["worker", "gateway", "engine", "env", "guest", "old_policy", "openenv"])


def test_connections_that_say_nothing_or_break_keep_nobody_out(service):
    fuzzing.fuzz_connections(service)
