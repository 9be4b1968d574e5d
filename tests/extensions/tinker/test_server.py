"""What routes call: whose policies are kept, and what a client is told whose policy is gone."""

import json

import pytest
from safetensors.torch import load_file

from asyncrl.errors import InputError
from asyncrl.extensions.tinker import server as module
from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.messages import CopyWeights, CreateSampler
from asyncrl.extensions.tinker.policies import BaseModel
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.server import GRACE_S, FinishedError, Server
from asyncrl.extensions.tinker.tables import OPTIM_STEP, SAVE
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.waiting import Answers

POLICY = "s:train:0"
KEEP_S = 3600.0
STEP = json.dumps({"model_id": POLICY, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}).encode()


@pytest.fixture(scope="module")
def base(tiny_model):
    return BaseModel(tiny_model, "float32", most_tokens=64)


@pytest.fixture
def clock(monkeypatch):
    """The time that the server sees; tests change it."""
    now = [1e6]
    for name in ("server", "ledger", "checkpoints", "training", "saving"):
        monkeypatch.setattr(f"asyncrl.extensions.tinker.{name}.stamp_s", lambda: now[0])
    return now


@pytest.fixture
def server(base, tmp_path, clock):
    ledger, answers = Ledger(tmp_path), Answers()
    training = Training(base, Checkpoints(tmp_path, ledger), answers, "tiny", 8, 2)
    made = Server(training, Sampling(ledger, answers, 16), answers, "", KEEP_S)
    ledger.add_session("s", {"user_metadata": None, "display_name": None})
    body = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    made.creating("s", 0, json.dumps(body).encode())
    work(made)
    yield made
    for policy in training.active.values():
        policy.remove()
    ledger.close()


def work(server):
    while (request := server.training.queue.next()) is not None:
        server.training.carry_out(request)


def states(server):
    return [one.name for one in server.checkpoints.folder.glob("policies/*/*")]


def tidied(server):
    server.unload_deserted()
    work(server)
    server.tidy()


def test_a_policy_whose_client_is_not_heard_of_loses_its_state_after_the_time_it_is_kept(server, clock):
    clock[0] += KEEP_S
    server.need_session("s")
    clock[0] += KEEP_S - 1
    tidied(server)
    assert states(server) == ["state-0.safetensors"]
    clock[0] += 2
    tidied(server)
    assert states(server) == [] and server.ledger.policies() == []
    with pytest.raises(InputError, match="there is no session 's'"):
        server.need_session("s")


def test_a_server_that_was_down_gives_clients_time_to_call_again(server, clock):
    clock[0] += 10 * KEEP_S
    again = Server(server.training, server.sampling, server.answers, "", KEEP_S)
    tidied(again)
    assert states(server) == ["state-0.safetensors"]
    clock[0] += GRACE_S
    again.need_session("s")
    tidied(again)
    assert states(server) == ["state-0.safetensors"]


def test_a_finished_session_frees_its_policies_at_once_and_answers_what_it_answered(server, clock):
    asked = server.of_policy(POLICY, 1, OPTIM_STEP, STEP)
    work(server)
    server.ledger.finish("s")
    tidied(server)
    assert states(server) == []
    assert server.of_policy(POLICY, 1, OPTIM_STEP, STEP) == asked
    assert server.creating("s", 0, b"")["request_id"] == "s:create:0/0"
    with pytest.raises(InputError, match="was unloaded, or its client was not heard of for too long"):
        server.of_policy(POLICY, 2, OPTIM_STEP, STEP)
    for refused in (
        lambda: server.creating("s", 1, b""),
        lambda: server.sampler_of(CreateSampler(session_id="s", sampling_session_seq_id=3)),
    ):
        with pytest.raises(FinishedError, match="session s is finished; begin another"):
            refused()
    clock[0] += KEEP_S + 1
    tidied(server)
    assert server.ledger.session("s") is None


def test_a_policy_that_is_to_be_unloaded_takes_no_new_requests(server):
    first = server.unload(POLICY)
    assert server.unload(POLICY) == first
    with pytest.raises(InputError, match="has no state any more; go on from a checkpoint"):
        server.of_policy(POLICY, 1, OPTIM_STEP, STEP)
    work(server)
    assert server.unload(POLICY) == first and states(server) == []
    assert server.state()["policies"] == 0
    with pytest.raises(InputError, match="there is no policy 's:train:5'"):
        server.unload("s:train:5")


def test_a_session_that_has_too_much_waiting_is_to_send_again(server, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    server.of_policy(POLICY, 2, OPTIM_STEP, STEP)
    server.of_policy(POLICY, 2, OPTIM_STEP, STEP)
    with pytest.raises(module.TooManyError, match="1 requests of this session wait already"):
        server.of_policy(POLICY, 3, OPTIM_STEP, STEP)


def test_a_checkpoint_is_copied_once_for_each_request_and_outlives_its_source(server, clock):
    body = json.dumps({"model_id": POLICY, "seq_id": 1, "path": "one", "ttl_seconds": 60}).encode()
    server.of_policy(POLICY, 1, SAVE, body)
    work(server)
    asked = CopyWeights(source_path=f"tinker://{POLICY}/weights/one", ttl_seconds=120)
    path = server.copy(asked, "key")
    assert server.copy(asked, "key") == path != server.copy(asked, "another")
    found = server.checkpoints.find(path, "weights")
    assert (found.expires - clock[0], found.bytes > 0) == (120, True)
    clock[0] += 61
    tidied(server)
    with pytest.raises(InputError, match="there is no checkpoint tinker://s:train:0/weights/one"):
        server.copy(asked, "third")
    first, second = server.checkpoints.files(server.checkpoints.find(path))
    assert load_file(first) and json.loads(second.read_text())["rank"] == 2
    with pytest.raises(InputError, match="has no state any more; go on from a checkpoint"):
        server.of_policy(found.policy, 1, OPTIM_STEP, STEP)
    clock[0] += 60
    tidied(server)
    assert server.ledger.checkpoints() == [] and [one.id for one in server.ledger.policies()] == [POLICY]
    assert [one.name for one in (server.checkpoints.folder / "policies").iterdir()] == [POLICY]
