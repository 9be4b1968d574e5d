"""Which request is next."""

import pytest

from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.queue import Queue
from asyncrl.extensions.tinker.tables import (
    CREATE,
    JSON,
    OPTIM_STEP,
    UNLOAD,
    UNLOADING,
    PolicyRecord,
    Request,
)

ONE, TWO = "s:train:0", "s:train:1"


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path)
    for name in (ONE, TWO):
        made.add_policy(PolicyRecord(name, "s", {}, 0, 1.0, 1.0, None))
    yield made
    made.close()


@pytest.fixture
def queue(ledger):
    return Queue(ledger)


def steps(owner, *numbers):
    return [Request(owner, number, OPTIM_STEP, b"a") for number in numbers]


def drained(queue):
    """Carry out all that may be; return the names in their order."""
    found = []
    while (request := queue.next()) is not None:
        queue.done(request)
        found.append(request.id)
    return found


def add(queue, *requests):
    for request in requests:
        queue.add(request)


def test_owners_take_turns_and_each_owners_numbers_their_order(queue):
    add(queue, *steps(ONE, 2, 1), *steps(TWO, 1), Request("s:create:2", 0, CREATE, b"a"))
    assert drained(queue) == [f"{ONE}/1", f"{TWO}/1", "s:create:2/0", f"{ONE}/2"]
    assert len(queue) == 0


def test_a_number_waits_for_the_one_before_it(queue):
    add(queue, *steps(ONE, 2))
    assert drained(queue) == [] and len(queue) == 1
    add(queue, *steps(ONE, 1))
    assert drained(queue) == [f"{ONE}/1", f"{ONE}/2"]


def test_a_policy_is_unloaded_after_what_it_was_asked_before(queue):
    add(queue, Request(ONE + UNLOADING, 0, UNLOAD, b""), *steps(ONE, 1, 2, 9))
    assert drained(queue) == [f"{ONE}/1", f"{ONE}/2", f"{ONE}{UNLOADING}/0"]
    queue.drop(ONE)
    assert len(queue) == 0


def test_a_later_server_goes_on_after_the_newest_answer(ledger):
    for request in steps(ONE, 1, 2):
        ledger.receive(request)
    ledger.answer(steps(ONE, 1)[0], b"x", JSON)
    queue = Queue(ledger)
    add(queue, *steps(ONE, 2))
    assert drained(queue) == [f"{ONE}/2"]


def test_what_is_for_a_policy_that_is_forgotten_is_next_so_that_it_is_refused(queue):
    add(queue, *steps("s:train:9", 5))
    assert drained(queue) == ["s:train:9/5"]
