"""Which is at fault for numbers of another policy, an engine or a worker, by numbers worked out by hand."""

from asyncrl.train.features.faulty_engine import faulty_engines
from asyncrl.train.features.logprob_check import Comparison, Tolerance

TOLERANCE = Tolerance(0.25, 15.0)
GOOD, BAD = "http://10.0.0.1:1", "http://10.0.0.2:1"


def part(group, engine, error, num_tokens=100, worst=1.0):
    return Comparison(group, num_tokens, error, worst, engine=engine)


def faulty(*parts):
    return faulty_engines(parts, TOLERANCE)


def test_an_engine_is_at_fault_that_alone_is_wrong_beside_one_that_is_right():
    assert faulty(part("a", BAD, 0.5), part("a", GOOD, 0.01), part("b", BAD, 0.4), part("c", GOOD, 0.0)) == {
        BAD: ["a", "b"]
    }
    # It was sound before, or a worker is at fault, which the buffer tells by whose groups these are.
    assert faulty(part("a", BAD, 0.5), part("b", BAD, 0.01), part("b", GOOD, 0.0)) == {BAD: ["a"]}
    # One token is enough where it is far off.
    assert faulty(part("a", BAD, 0.1, worst=30.0), part("b", GOOD, 0.0)) == {BAD: ["a"]}
    assert faulty(part("a", BAD, float("nan"), worst=float("nan")), part("b", GOOD, 0.0)) == {BAD: ["a"]}


def test_a_worker_is_at_fault_that_is_wrong_about_every_engine():
    assert faulty(part("a", BAD, 0.5), part("a", GOOD, 0.5)) == {}


def test_nothing_is_told_of_tokens_whose_engine_is_not_known():
    assert faulty(part("a", "", 0.5), part("b", GOOD, 0.0)) == {}
    # Nor is an engine sound of which too few tokens, or none, were compared.
    assert faulty(part("a", BAD, 0.5), part("b", "", 0.0)) == {}
    assert faulty(part("a", BAD, 0.5), part("b", GOOD, 0.0, num_tokens=15)) == {}


def test_an_engine_is_not_at_fault_for_a_group_that_is_wrong_without_it():
    # 10 tokens of each of two engines are too few to be wrong by themselves, and together they are not.
    apart = [part("b", "http://10.0.0.3:1", 0.9, 10), part("b", "http://10.0.0.4:1", 0.9, 10)]
    assert faulty(part("a", BAD, 0.5), part("c", GOOD, 0.0), *apart) == {}


def test_where_nothing_is_wrong_no_engine_is_at_fault():
    assert faulty(part("a", GOOD, 0.1), part("b", BAD, 0.2)) == {}
