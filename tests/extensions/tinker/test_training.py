"""Requests are carried out once and in order, whatever ends the server in between."""

import json

import pytest
from safetensors.torch import load_file

from asyncrl.extensions.tinker import checkpoints as module
from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.policies import BaseModel, TrainedAdapter
from asyncrl.extensions.tinker.tables import (
    CREATE,
    FAILED,
    FORWARD_BACKWARD,
    OPTIM_STEP,
    SAVE,
    SAVE_FOR_SAMPLER,
    UNLOAD,
    UNLOADING,
    Request,
)
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.waiting import Answers
from tests.extensions.tinker.form import forward_backward, read_output, text_row

POLICY = "s:train:0"
TEXTS = ([5, 6, 7, 8, 9], [5, 9, 3, 3], [4, 4, 8, 2])


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


@pytest.fixture(scope="module")
def base(tiny_model):
    return BaseModel(tiny_model, "float32", most_tokens=64)


class Start:
    """A server's training half, from the start of its process to its end."""

    def __init__(self, base, folder, most_active=4):
        self.ledger = Ledger(folder)
        self.training = Training(base, Checkpoints(folder, self.ledger), Answers(), "tiny", 8, most_active)

    def send(self, *requests):
        """Send requests as a client does, and as it does again."""
        for request in requests:
            if self.ledger.receive(request):
                self.training.submit(request)

    def work(self):
        while (request := self.training.queue.next()) is not None:
            self.training.carry_out(request)

    def end(self):
        """Leave nothing in the model that all servers of these tests share."""
        for policy in self.training.active.values():
            policy.remove()
        self.ledger.close()

    def answer(self, number, owner=POLICY):
        return self.ledger.request(owner, number)


def of_policy(number, kind, owner=POLICY, **fields):
    body = json.dumps({"model_id": owner, "seq_id": number, **fields}).encode()
    return Request(owner, number, kind, body)


def created(slot=0, rank=4, **fields):
    body = {
        "session_id": "s",
        "model_seq_id": slot,
        "base_model": "tiny",
        "lora_config": {"rank": rank},
        **fields,
    }
    return Request(f"s:create:{slot}", 0, CREATE, json.dumps(body).encode())


def rows(number, *texts, owner=POLICY):
    body = forward_backward(owner, number, [text_row(list(text)) for text in texts])
    return Request(owner, number, FORWARD_BACKWARD, body)


def step(number, owner=POLICY):
    return of_policy(number, OPTIM_STEP, owner, adam_params={"learning_rate": 0.01})


SENT = (
    rows(1, *TEXTS[:2]), rows(2, TEXTS[2]), step(3), of_policy(4, SAVE, path="middle"), rows(5, TEXTS[0]), step(6),
)  # fmt: skip


def state(folder, number=6):
    return load_file(folder / "policies" / POLICY / f"state-{number}.safetensors")


def alike(first, second):
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    server = Start(base, folder)
    server.send(created())
    server.work()
    server.send(*SENT)
    server.work()
    server.end()
    return folder


def test_requests_are_carried_out_in_the_order_of_their_numbers_however_they_arrive(
    base, tmp_path, undisturbed
):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    for request in reversed(SENT):
        server.send(request)
        server.work()
    server.end()
    assert alike(state(tmp_path), state(undisturbed))


def test_a_request_that_is_sent_again_is_the_same_request(base, tmp_path, undisturbed):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    for request in SENT:
        server.send(request, request)
        server.work()
        server.send(request)
        server.work()
    assert server.training.steps == 2
    server.end()
    assert alike(state(tmp_path), state(undisturbed))


POINTS = {
    "before a gradient": (TrainedAdapter, "forward_backward", "before"),
    "after a gradient, before its answer": (TrainedAdapter, "forward_backward", "after"),
    "after a step, before its state": (TrainedAdapter, "step", "after"),
    "while a state is written": (TrainedAdapter, "save", "before"),
    "after a state, before its answer": (TrainedAdapter, "save", "after"),
    "after an answer": (Ledger, "answer", "after"),
}


@pytest.mark.parametrize("fatal", [{1, 2, 3}, {2}, {1, 4}])
@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_is_killed_ends_where_it_would_have_with_its_clients_retries(
    base, tmp_path, undisturbed, monkeypatch, point, fatal
):
    """fatal: by number, the passes of the point that end it."""
    kind, name, when = POINTS[point]
    whole, passes = getattr(kind, name), 0

    def killing(self, *args, **named):
        nonlocal passes
        passes += 1
        is_fatal = passes in fatal
        if is_fatal and when == "before":
            raise Killed
        found = whole(self, *args, **named)
        if is_fatal:
            raise Killed
        return found

    server, kills = Start(base, tmp_path), 0
    server.send(created())
    server.work()
    monkeypatch.setattr(kind, name, killing)
    while True:
        try:
            server.send(*SENT)
            server.work()
            break
        except Killed:
            server.end()
            server, kills = Start(base, tmp_path), kills + 1
    server.work()
    answers = [server.answer(number) for number in (1, 2, 5)]
    server.end()
    assert kills == len([one for one in fatal if one <= passes]) >= 1
    assert alike(state(tmp_path), state(undisturbed))
    again = Ledger(undisturbed)
    assert [one.answer for one in answers] == [again.request(POLICY, number).answer for number in (1, 2, 5)]
    again.close()


def test_a_policy_that_made_room_for_others_goes_on_with_its_gradient(base, tmp_path, undisturbed):
    server = Start(base, tmp_path, most_active=1)
    server.send(created())
    server.work()
    for request in SENT:
        server.send(request)
        server.work()
        slot = 10 + request.number
        server.send(created(slot))
        server.work()
        assert list(server.training.active) == [f"s:train:{slot}"]
    server.end()
    assert alike(state(tmp_path), state(undisturbed))


def failure(server, number):
    found = server.answer(number)
    assert found.form == FAILED
    return json.loads(found.answer)


def test_a_request_that_fails_says_why_and_the_next_is_carried_out(base, tmp_path):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    wrong = Request(POLICY, 1, FORWARD_BACKWARD, forward_backward(POLICY, 1, [text_row([5, 9999])]))
    server.send(wrong, rows(2, TEXTS[0]), of_policy(3, OPTIM_STEP, optimizer_params={"type": "dimuon"}))
    server.work()
    said = failure(server, 1)
    assert said["category"] == "user" and "data[0].target_tokens: token ids must be from 0" in said["error"]
    assert len(read_output(server.answer(2).answer)[0][0]) == 4
    assert "AdamW alone" in failure(server, 3)["error"]
    server.end()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"base_model": "other"}, "this server has 'tiny', got 'other'"),
        ({"lora_config": {"rank": 9}}, r"rank: must be at most 8 \(--lora-rank\), got 9"),
        ({"optimizer_config": {"type": "dimuon"}}, "must be 'adamw', got 'dimuon'"),
        ({"lora_config": {"rank": 2, "train_mlp": False, "train_attn": False}}, "there is nothing to train"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused(base, tmp_path, fields, why):
    server = Start(base, tmp_path)
    server.send(created(**fields))
    server.work()
    found = server.answer(0, "s:create:0")
    assert found.form == FAILED
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(json.loads(found.answer)["error"])
    server.end()


def test_a_bug_fails_its_request_alone(base, tmp_path, monkeypatch):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    monkeypatch.setattr(TrainedAdapter, "step", lambda self, params: 1 / 0)
    server.send(rows(1, TEXTS[0]), step(2))
    server.work()
    assert failure(server, 2) == {
        "error": "the server failed: ZeroDivisionError: division by zero", "category": "server",
    }  # fmt: skip
    server.end()


def test_a_step_that_fails_half_done_leaves_the_policy_as_it_was_written_down(
    base, tmp_path, undisturbed, monkeypatch
):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    server.send(*SENT[:2])
    server.work()
    with monkeypatch.context() as patch:
        patch.setattr(TrainedAdapter, "save", lambda self, file: 1 / 0)
        server.send(step(3))
        server.work()
    assert failure(server, 3)["category"] == "server"
    # The same step again, as a request of another number: with the gradients of before, applied once.
    server.send(step(4), of_policy(5, SAVE, path="middle"))
    server.work()
    server.end()
    saved, wanted = (
        load_file(folder / "policies" / POLICY / "weights" / "middle.safetensors")
        for folder in (tmp_path, undisturbed)
    )
    assert alike(saved, wanted)


def test_a_full_disk_is_no_request_s_fault(base, tmp_path, monkeypatch):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()

    def full(self, file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TrainedAdapter, "save", full)
        server.send(rows(1, TEXTS[0]), step(2))
        with pytest.raises(OSError, match="No space left"):
            server.work()
    server.end()
    server = Start(base, tmp_path)
    server.work()
    assert json.loads(server.answer(2).answer)["metrics"]["grad_norm"] > 0
    server.end()


def test_a_checkpoint_is_kept_found_and_replaced_when_asked(base, tmp_path):
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    server.send(
        rows(1, TEXTS[0]), step(2), of_policy(3, SAVE, path="one"), of_policy(4, SAVE, path="one"),
        of_policy(5, SAVE, path="one", overwrite=True, ttl_seconds=3600, user_metadata={"a": "b"}),
        of_policy(6, SAVE_FOR_SAMPLER, path="two"),
        of_policy(7, SAVE_FOR_SAMPLER, sampling_session_seq_id=3),
    )  # fmt: skip
    server.work()
    assert json.loads(server.answer(3).answer)["path"] == f"tinker://{POLICY}/weights/one"
    assert "overwrite = True replaces it" in failure(server, 4)["error"]
    checkpoints = server.training.checkpoints
    found = checkpoints.find(f"tinker://{POLICY}/weights/one", "")
    assert (found.about, found.expires - found.created) == ({"a": "b"}, pytest.approx(3600, abs=5))
    assert json.loads(server.answer(7).answer)["sampling_session_id"] == "s:sample:0-7"
    assert server.ledger.sampler("s:sample:0-7")["adapter"] == f"{POLICY}/_7"
    # From it, a policy of another session is made.
    loads = {"session_id": "s", "model_seq_id": 1, "path": found.path, "optimizer": True}
    server.send(Request("s:create:1", 0, CREATE, json.dumps(loads).encode()))
    server.work()
    assert json.loads(server.answer(0, "s:create:1").answer)["model_id"] == "s:train:1"
    first, second = (server.training.active[f"s:train:{slot}"].parameters for slot in (0, 1))
    assert all((first[name] == second[name]).all() for name in first)
    checkpoints.remove(found)
    assert list(checkpoints.weights_file(POLICY, "one").parent.iterdir()) == []
    server.end()


def test_the_newest_snapshots_of_a_policy_are_kept(base, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KEPT_SNAPSHOTS", 2)
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    server.send(*(of_policy(n, SAVE_FOR_SAMPLER, sampling_session_seq_id=n) for n in (1, 2, 3, 4)))
    server.send(of_policy(5, SAVE_FOR_SAMPLER, path="named"))
    server.work()
    server.training.checkpoints.tidy(0.0)
    assert sorted(one.name for one in (tmp_path / "adapters" / POLICY).iterdir()) == ["_3", "_4", "named"]
    server.end()


def unload(owner=POLICY):
    return Request(owner + UNLOADING, 0, UNLOAD, b"")


def files(folder):
    return sorted(
        str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file() and one.parent != folder
    )


KEPT = [f"adapters/{POLICY}/_5/adapter_config.json", f"adapters/{POLICY}/_5/adapter_model.safetensors",
        f"policies/{POLICY}/weights/middle.json", f"policies/{POLICY}/weights/middle.safetensors"]  # fmt: skip
"""What a policy leaves that has been unloaded: a checkpoint, and what a sampler has."""
BEFORE = (*SENT[:4], of_policy(5, SAVE_FOR_SAMPLER, sampling_session_seq_id=0), rows(6, TEXTS[0]))


@pytest.mark.parametrize(
    "point", [(Ledger, "remove_policy"), (Ledger, "answer"), (Checkpoints, "remove_state")]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unloaded_policy_leaves_its_checkpoints_and_its_answers_whatever_kills_the_server(
    base, tmp_path, monkeypatch, point, when
):
    kind, name = point
    server = Start(base, tmp_path)
    server.send(created())
    server.work()
    server.send(*BEFORE)
    server.work()
    server.send(rows(9, TEXTS[0]))
    whole = getattr(kind, name)

    def killing(self, *args, **named):
        if when == "after":
            whole(self, *args, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, killing)
        server.send(unload())
        with pytest.raises(Killed):
            server.work()
    server.end()
    server = Start(base, tmp_path)
    server.send(unload(), *BEFORE)
    server.work()
    server.training.checkpoints.tidy(0.0)
    assert json.loads(server.answer(0, POLICY + UNLOADING).answer) == {
        "type": "unload_model",
        "model_id": POLICY,
    }
    assert files(tmp_path) == KEPT and server.training.active == {}
    assert len(read_output(server.answer(6).answer)[0][0]) == 4
    assert f"{POLICY} was unloaded, or its client was not heard of" in failure(server, 9)["error"]
    assert server.training.steps == 0 and len(server.training.queue) == 0
    server.end()


def test_what_a_kill_and_forgotten_sessions_have_left_is_tidied_up(base, tmp_path):
    server = Start(base, tmp_path)
    server.ledger.add_session("s", {})
    server.send(created())
    server.work()
    server.send(*BEFORE, of_policy(7, SAVE_FOR_SAMPLER, path="named"))
    server.work()
    named = [
        f"adapters/{POLICY}/named/{name}" for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    for left in ("state-1.safetensors", "weights/x.safetensors", "weights/x.json"):
        (tmp_path / "policies" / POLICY / left).write_bytes(b"")
    (tmp_path / "adapters" / POLICY / "y").mkdir()
    server.training.checkpoints.tidy(0.0)
    assert files(tmp_path) == sorted([*KEPT, *named, f"policies/{POLICY}/state-3.safetensors"])
    server.send(unload())
    server.work()
    server.training.checkpoints.tidy(2e12)
    assert files(tmp_path) == sorted([*KEPT[2:], *named])
    for one in server.ledger.checkpoints():
        server.training.checkpoints.remove(one)
    server.training.checkpoints.tidy(2e12)
    assert server.ledger.policy(POLICY) is None and list(tmp_path.glob("*/*")) == []
    server.end()
