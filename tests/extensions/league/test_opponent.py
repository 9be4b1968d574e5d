"""The opponent that a lease names is read strictly."""

import pytest

from asyncrl.data.codec import lease_from_map, lease_to_map
from asyncrl.errors import InputError
from asyncrl.extensions.league.opponent import NEWEST, Opponent, opponent_extra, opponent_of
from asyncrl.types import Lease, Task


def leased(extras):
    """A lease as a worker gets it."""
    return lease_from_map(lease_to_map(Lease("l", Task("t", "gridworld"), 0, 1, 2, 1, 60.0, extras=extras)))


def test_a_lease_without_extras_has_no_opponent():
    assert opponent_extra(None) == {}
    assert opponent_of(leased({})) is None


def test_an_opponent_comes_back_beside_what_others_wrote():
    opponent = Opponent(3, main=True, policy="rival", against=1)
    assert opponent_of(leased({**opponent_extra(opponent), "depth": 3})) == opponent


def test_games_are_counted_by_whose_version_it_is():
    assert Opponent(3, main=True).key == 3
    assert Opponent(3, main=True, policy="rival").key == "rival/3"
    assert Opponent(NEWEST, main=True, policy="rival").key == "rival"
    assert Opponent(NEWEST, main=True, policy="rival", against=2).key == "rival:2"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("rival", r"lease\.extras\.opponent must be a map"),
        ({"main": True, "policy": "main"}, r"lease\.extras\.opponent\.version is missing"),
        ({"version": -2, "main": True, "policy": "main"}, r"version must lie in \[-1, "),
        ({"version": 1, "main": 1, "policy": "main"}, r"main must be bool"),
        ({"version": 1, "main": True, "policy": "main", "side": 2}, r"unknown fields: side"),
    ],
)
def test_an_opponent_that_is_none_is_refused(raw, message):
    with pytest.raises(InputError, match=message):
        opponent_of(leased({"opponent": raw}))
