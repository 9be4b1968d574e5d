"""What the server has written down."""

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.ledger import KEPT_ROWS, Ledger
from asyncrl.extensions.tinker.tables import (
    FAILED,
    FORWARD_BACKWARD,
    JSON,
    PROTO,
    SAMPLE,
    Checkpoint,
    PolicyRecord,
    Request,
)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path)
    yield made
    made.close()


def request(number=1, body=b"a", owner="s:train:0", kind=FORWARD_BACKWARD):
    return Request(owner, number, kind, body)


def test_a_request_is_new_once_and_another_of_its_number_is_refused(ledger):
    assert ledger.receive(request()) is True
    assert ledger.receive(request()) is False
    with pytest.raises(InputError, match="request s:train:0/1: another request has this number"):
        ledger.receive(request(body=b"b"))
    # Of one that has been carried out nothing is left to compare.
    ledger.answer(request(), b"x", PROTO, drop_body=True)
    assert ledger.receive(request(body=b"b")) is False
    assert ledger.request("s:train:0", 1).answer == b"x"


def test_an_answer_and_what_it_changed_are_kept_together_or_not_at_all(ledger):
    ledger.add_policy(PolicyRecord("s:train:0", "s", {"rank": 2}, 0, 1.0, 1.0, None))
    ledger.receive(request())

    def fails():
        with ledger.together():
            ledger.applied("s:train:0", 1)
            ledger.answer(request(), b"x", JSON)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert ledger.policy("s:train:0").applied == 0
    assert ledger.request("s:train:0", 1).answer is None
    with ledger.together():
        ledger.applied("s:train:0", 1)
        ledger.answer(request(), b"x", JSON)
    assert ledger.policy("s:train:0").applied == 1
    found = ledger.request("s:train:0", 1)
    assert (found.answer, found.body) == (b"x", b"")


def test_old_answers_are_dropped_but_none_whose_request_may_be_needed_again(ledger):
    for number in (1, 2):
        ledger.receive(request(number))
        ledger.answer(request(number), b"x", PROTO, drop_body=number == 1)
    late = request(KEPT_ROWS + 10)
    ledger.receive(late)
    ledger.answer(late, b"x", PROTO)
    assert [one.number for one in ledger.after("s:train:0", 0)] == [2, KEPT_ROWS + 10]


def test_requests_that_wait_are_counted_by_their_session(ledger):
    ledger.receive(request())
    ledger.receive(request(owner="s:sample:0", kind=SAMPLE))
    ledger.receive(request(owner="s2:train:0"))
    assert (ledger.count_unanswered("s"), ledger.count_unanswered("s2"), ledger.count_unanswered("x")) == (
        2,
        1,
        0,
    )
    assert [one.owner for one in ledger.unanswered((SAMPLE,))] == ["s:sample:0"]


def test_what_was_written_is_there_for_the_next_server(tmp_path):
    first = Ledger(tmp_path)
    first.add_session("s", {"user_metadata": {"a": "b"}, "display_name": None})
    first.add_sampler("s:sample:0", "s", "p/one", "tinker://p/sampler_weights/one")
    first.add_checkpoint(Checkpoint("p", "weights", "one", 5.0, 7, 9.0, {"a": "b"}))
    first.close()
    again = Ledger(tmp_path)
    assert again.seen("s") and not again.seen("x")
    assert again.session("s")["about"]["user_metadata"] == {"a": "b"}
    assert again.sampler("s:sample:0")["adapter"] == "p/one" and again.sampler("x") is None
    assert again.checkpoints("p") == [Checkpoint("p", "weights", "one", 5.0, 7, 9.0, {"a": "b"})]
    again.close()


def policy(name="s:train:0", **fields):
    return PolicyRecord(name, "s", {"rank": 2}, 0, 1.0, 1.0, None, **fields)


def test_a_removed_policy_keeps_its_answers_and_what_waits_is_refused(ledger):
    ledger.add_policy(policy())
    for number in (1, 2):
        ledger.receive(request(number))
    ledger.answer(request(1), b"x", PROTO)
    ledger.remove_policy("s:train:0", b"why")
    first, second = (ledger.request("s:train:0", number) for number in (1, 2))
    assert (first.answer, first.form, first.body) == (b"x", PROTO, b"")
    assert (second.answer, second.form, second.body) == (b"why", FAILED, b"")
    assert ledger.policy("s:train:0").removed is not None and ledger.count_trained() == 0


def test_a_policy_is_deserted_when_its_session_is_finished_or_not_heard_of(ledger):
    ledger.add_session("s", {})
    ledger.add_policy(policy())
    seen = ledger.session("s")["seen"]
    assert ledger.deserted(before=seen) == [] and ledger.deserted(before=seen + 1) == ["s:train:0"]
    ledger.finish("s")
    first = ledger.session("s")["finished"]
    ledger.finish("s")
    assert ledger.session("s")["finished"] == first
    assert ledger.deserted(before=0.0) == ["s:train:0"]
    ledger.remove_policy("s:train:0", b"why")
    assert ledger.deserted(before=seen + 1) == []


def test_a_session_is_forgotten_when_it_is_over_and_nothing_of_it_waits(ledger):
    later = 2e12
    ledger.add_session("s", {})
    ledger.add_session("t", {})
    for name in ("s:train:0", "s:train:1"):
        ledger.add_policy(policy(name))
    ledger.add_checkpoint(Checkpoint("s:train:1", "weights", "one", 5.0, 7))
    ledger.add_sampler("s:sample:0", "s", "p/one", "")
    ledger.receive(request(owner="s:sample:0", kind=SAMPLE))
    ledger.receive(request(owner="t:sample:0", kind=SAMPLE))
    assert ledger.forget_sessions(later) == 0
    for name in ("s:train:0", "s:train:1"):
        ledger.remove_policy(name, b"why")
    assert ledger.forget_sessions(later) == 0
    ledger.answer(request(owner="s:sample:0", kind=SAMPLE), b"x", PROTO, drop_body=True)
    assert ledger.forget_sessions(0.0) == 0
    assert ledger.forget_sessions(later) == 1
    assert ledger.session("s") is None and ledger.sampler("s:sample:0") is None
    assert ledger.request("s:sample:0", 1) is None and ledger.request("t:sample:0", 1) is not None
    # What its checkpoint was made by is still asked for.
    assert ledger.policy("s:train:0") is None and ledger.policy("s:train:1") is not None
