"""What a lease carries besides its own fields is read strictly by those who know it, and passed over by all others."""

from dataclasses import replace

import pytest

from asyncrl.data.codec import lease_from_map, lease_to_map
from asyncrl.data.lease_extras import examples_extra, examples_of, opponent_extra, opponent_of
from asyncrl.errors import InputError
from asyncrl.types import Lease, Opponent, Task

LEASE = Lease("l", Task("t", "gridworld"), 0, 1, 2, 1, 60.0)


def leased(extras):
    """The lease as a worker gets it."""
    return lease_from_map(lease_to_map(replace(LEASE, extras=extras)))


def test_a_lease_without_extras_has_no_examples_and_no_opponent():
    assert examples_extra(()) == opponent_extra(None) == {}
    assert examples_of(leased({})) == ()
    assert opponent_of(leased({})) is None


def test_extras_come_back_beside_each_other_and_beside_unknown_ones():
    opponent = Opponent(3, main=True, policy="rival", against=1)
    lease = leased({**examples_extra(("way 1", "way 2")), **opponent_extra(opponent), "depth": 3})
    assert examples_of(lease) == ("way 1", "way 2")
    assert opponent_of(lease) == opponent


@pytest.mark.parametrize("raw", ["way 1", [1], None, {"0": "way 1"}])
def test_examples_that_are_no_texts_are_refused(raw):
    with pytest.raises(InputError, match=r"lease.extras.examples must be a list of texts"):
        examples_of(leased({"examples": raw}))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("rival", r"lease\.extras\.opponent must be a map"),
        ({"main": True, "policy": ""}, r"lease\.extras\.opponent\.version is missing"),
        ({"version": -2, "main": True, "policy": ""}, r"version must lie in \[-1, "),
        ({"version": 1, "main": 1, "policy": ""}, r"main must be bool"),
        ({"version": 1, "main": True, "policy": "", "side": 2}, r"unknown fields: side"),
    ],
)
def test_an_opponent_that_is_none_is_refused(raw, message):
    with pytest.raises(InputError, match=message):
        opponent_of(leased({"opponent": raw}))


def test_extras_that_json_does_not_hold_are_refused():
    with pytest.raises(InputError, match=r"lease\.extras\.depth must be a JSON value, got bytes"):
        leased({"depth": b"3"})
