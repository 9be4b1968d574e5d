"""What routes call: whose policies are kept, and what a client is told whose policy is gone."""

import asyncio
import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from asyncrl.errors import InputError
from asyncrl.extensions.tinker import server as module
from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.clients import OWNER, Client
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.listings import Page
from asyncrl.extensions.tinker.messages import CopyWeights, CreateSampler
from asyncrl.extensions.tinker.policies import BaseModel
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.server import GRACE_S, FinishedError, QuotaError, Server
from asyncrl.extensions.tinker.tables import FORWARD_BACKWARD, OPTIM_STEP, SAVE
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.views import state
from asyncrl.extensions.tinker.waiting import Answers
from tests.extensions.tinker.form import forward_backward, text_row

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
    for name in ("server", "ledger", "listings", "checkpoints", "training", "saving"):
        monkeypatch.setattr(f"asyncrl.extensions.tinker.{name}.stamp_s", lambda: now[0])
    return now


@pytest.fixture
def server(base, tmp_path, clock):
    ledger, answers = Ledger(tmp_path), Answers()
    training = Training(base, Checkpoints(tmp_path, ledger), answers, "tiny", 8, 2)
    made = Server(training, Sampling(ledger, answers, 16), answers, "", KEEP_S)
    ledger.add_session("s", {"user_metadata": None, "display_name": None})
    body = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    asyncio.run(made.creating("s", 0, json.dumps(body).encode(), OWNER))
    work(made)
    yield made
    for policy in training.active.values():
        policy.remove()
    ledger.close()


def work(server):
    while (request := server.training.queue.next()) is not None:
        server.training.carry_out(request)


def policies(server):
    return [one.id for one in server.listings.policies(Page("", 10, 0))[0]]


def states(server):
    return [one.name for one in server.checkpoints.folder.glob("policies/*/*")]


def tidied(server):
    server.unload_deserted()
    work(server)
    server.tidy()


def test_a_policy_whose_client_is_not_heard_of_loses_its_state_after_the_time_it_is_kept(server, clock):
    clock[0] += KEEP_S
    server.need_session("s", OWNER)
    clock[0] += KEEP_S - 1
    tidied(server)
    assert states(server) == ["state-0.safetensors"]
    clock[0] += 2
    tidied(server)
    assert states(server) == [] and policies(server) == []
    with pytest.raises(InputError, match="there is no session 's'"):
        server.need_session("s", OWNER)


def test_a_server_that_was_down_gives_clients_time_to_call_again(server, clock):
    clock[0] += 10 * KEEP_S
    again = Server(server.training, server.sampling, server.answers, "", KEEP_S)
    tidied(again)
    assert states(server) == ["state-0.safetensors"]
    clock[0] += GRACE_S
    again.need_session("s", OWNER)
    tidied(again)
    assert states(server) == ["state-0.safetensors"]


def test_a_finished_session_frees_its_policies_at_once_and_answers_what_it_answered(server, clock):
    asked = asyncio.run(server.of_policy(POLICY, 1, OPTIM_STEP, STEP, OWNER))
    work(server)
    server.ledger.finish("s")
    tidied(server)
    assert states(server) == []
    assert asyncio.run(server.of_policy(POLICY, 1, OPTIM_STEP, STEP, OWNER)) == asked
    assert asyncio.run(server.creating("s", 0, b"", OWNER))["request_id"] == "s:create:0/0"
    with pytest.raises(InputError, match="was unloaded, or its client was not heard of for too long"):
        asyncio.run(server.of_policy(POLICY, 2, OPTIM_STEP, STEP, OWNER))
    for refused in (
        lambda: asyncio.run(server.creating("s", 1, b"", OWNER)),
        lambda: server.sampler_of(CreateSampler(session_id="s", sampling_session_seq_id=3), OWNER),
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
        asyncio.run(server.of_policy(POLICY, 1, OPTIM_STEP, STEP, OWNER))
    work(server)
    assert server.unload(POLICY) == first and states(server) == []
    assert state(server)["policies"] == 0
    with pytest.raises(InputError, match="there is no policy 's:train:5'"):
        server.unload("s:train:5")


def test_a_session_that_has_too_much_waiting_is_to_send_again(server, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    asyncio.run(server.of_policy(POLICY, 2, OPTIM_STEP, STEP, OWNER))
    asyncio.run(server.of_policy(POLICY, 2, OPTIM_STEP, STEP, OWNER))
    with pytest.raises(module.TooManyError, match="1 requests of this session wait already"):
        asyncio.run(server.of_policy(POLICY, 3, OPTIM_STEP, STEP, OWNER))


def test_a_checkpoint_is_copied_once_for_each_request_and_outlives_its_source(server, clock):
    body = json.dumps({"model_id": POLICY, "seq_id": 1, "path": "one", "ttl_seconds": 60}).encode()
    asyncio.run(server.of_policy(POLICY, 1, SAVE, body, OWNER))
    work(server)
    asked = CopyWeights(source_path=f"tinker://{POLICY}/weights/one", ttl_seconds=120)
    path = server.copy(asked, OWNER, "key")
    assert server.copy(asked, OWNER, "key") == path != server.copy(asked, OWNER, "another")
    found = server.checkpoints.find(path, "", "weights")
    assert (found.expires - clock[0], found.bytes > 0) == (120, True)
    clock[0] += 61
    tidied(server)
    with pytest.raises(InputError, match="there is no checkpoint tinker://s:train:0/weights/one"):
        server.copy(asked, OWNER, "third")
    first, second = server.checkpoints.files(server.checkpoints.find(path, ""))
    assert load_file(first) and json.loads(second.read_text())["rank"] == 2
    with pytest.raises(InputError, match="has no state any more; go on from a checkpoint"):
        asyncio.run(server.of_policy(found.policy, 1, OPTIM_STEP, STEP, OWNER))
    clock[0] += 60
    tidied(server)
    assert server.ledger.checkpoints() == [] and policies(server) == [POLICY]
    assert [one.name for one in (server.checkpoints.folder / "policies").iterdir()] == [POLICY]


ALICE, BOB = Client("alice", training_clients=1, trained_tokens_a_day=6), Client("bob", requests_in_flight=1)


@pytest.fixture
def shared(server):
    """A server on which Alice has a policy, and Bob a session."""
    for name, client in (("a", ALICE), ("b", BOB)):
        server.ledger.add_session(name, {"user_metadata": None, "display_name": None}, client.name)
    asyncio.run(server.creating("a", 0, created("a"), ALICE))
    work(server)
    return server


def created(session, **fields):
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    return json.dumps({**body, **fields}).encode()


def asked(server, number, kind, client=ALICE, **fields):
    policy = f"{client.name[0]}:train:0"
    body = json.dumps({"model_id": policy, "seq_id": number, **fields}).encode()
    found = asyncio.run(server.of_policy(policy, number, kind, body, client))
    work(server)
    return json.loads(server.ledger.request(*split(found["request_id"])).answer)


def split(request_id):
    owner, _, number = request_id.rpartition("/")
    return owner, int(number)


def test_what_is_another_clients_is_not_there(shared):
    path = asked(shared, 1, SAVE, path="one")["path"]
    shared.ledger.add_sampler("a:sample:0", "a", "", "")
    loads = {"session_id": "b", "model_seq_id": 0, "path": path, "optimizer": False}
    for call, why in (
        (lambda: shared.policy("a:train:0", BOB), "there is no policy 'a:train:0'"),
        (lambda: shared.need_session("a", BOB), "there is no session 'a'"),
        (lambda: shared.sampler("a:sample:0", BOB), "there is no sampler 'a:sample:0'"),
        (lambda: shared.unload("a:train:0", BOB), "there is no policy"),
        (lambda: shared.checkpoints.find(path, "bob"), f"there is no checkpoint {path}"),
        (lambda: shared.copy(CopyWeights(source_path=path), BOB, "key"), "there is no checkpoint"),
    ):
        with pytest.raises(InputError, match=why):
            call()
    for request, client, status in (
        ("a:train:0/1", BOB, 410),
        ("a:train:0/1", ALICE, 200),
        ("a:train:0/1", OWNER, 200),
    ):
        assert asyncio.run(shared.retrieve(request, client)).status_code == status
    # Neither is it loaded, until it is published, by which it can be read and not be changed.
    asyncio.run(shared.creating("b", 0, json.dumps(loads).encode(), BOB))
    work(shared)
    assert "there is no checkpoint" in json.loads(shared.ledger.request("b:create:0", 0).answer)["error"]
    shared.ledger.add_checkpoint(replace(shared.checkpoints.find(path, "alice", is_own=True), public=True))
    asyncio.run(shared.creating("b", 1, json.dumps({**loads, "model_seq_id": 1}).encode(), BOB))
    work(shared)
    assert json.loads(shared.ledger.request("b:create:1", 0).answer)["model_id"] == "b:train:1"
    with pytest.raises(InputError, match="there is no checkpoint"):
        shared.checkpoints.find(path, "bob", is_own=True)
    assert shared.copy(CopyWeights(source_path=path), BOB, "key").startswith("tinker://copy-")


def test_a_quota_that_is_used_up_refuses_what_is_new_and_answers_what_was_asked_before(shared, clock):
    with pytest.raises(
        QuotaError, match=r"alice has 1 training clients already \(training_clients\); end one by"
    ):
        asyncio.run(shared.creating("a", 1, created("a", model_seq_id=1), ALICE))
    assert asyncio.run(shared.creating("a", 0, created("a"), ALICE))
    bodies = {n: forward_backward("a:train:0", n, [text_row([5, 6, 7, 8])]) for n in (1, 2, 3)}
    for number in (1, 2):
        asyncio.run(shared.of_policy("a:train:0", number, FORWARD_BACKWARD, bodies[number], ALICE))
        work(shared)
    assert shared.listings.today("alice").trained == 6
    with pytest.raises(
        QuotaError, match="alice has used up its trained_tokens_a_day: 6 of 6; go on after 00:00 UTC"
    ):
        asyncio.run(shared.of_policy("a:train:0", 3, FORWARD_BACKWARD, bodies[3], ALICE))
    assert asyncio.run(shared.of_policy("a:train:0", 2, FORWARD_BACKWARD, bodies[2], ALICE))
    clock[0] += 86400
    assert asyncio.run(shared.of_policy("a:train:0", 3, FORWARD_BACKWARD, bodies[3], ALICE))
    shared.unload("a:train:0", ALICE)
    work(shared)
    assert asyncio.run(shared.creating("a", 1, created("a", model_seq_id=1), ALICE))


def test_a_client_with_its_requests_in_flight_is_to_send_again(shared):
    asyncio.run(shared.creating("b", 0, created("b"), BOB))
    with pytest.raises(
        module.TooManyError, match=r"bob has 1 requests in flight already \(requests_in_flight\)"
    ):
        asyncio.run(shared.creating("b", 1, created("b", model_seq_id=1), BOB))
    work(shared)
    assert asyncio.run(shared.creating("b", 1, created("b", model_seq_id=1), BOB))
