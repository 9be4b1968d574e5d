"""What a lease carries besides its own fields is passed over by all who do not know it."""

import pytest

from asyncrl.data.codec import lease_from_map, lease_to_map
from asyncrl.errors import InputError
from asyncrl.types import Lease, Task

LEASE = Lease("l", Task("t", "gridworld"), 0, 1, 2, 1, 60.0, extras={"depth": 3, "ways": ["a", None]})


def test_extras_come_back_as_they_were_written():
    assert lease_from_map(lease_to_map(LEASE)) == LEASE


def test_extras_that_json_does_not_hold_are_refused():
    raw = lease_to_map(LEASE)
    raw["extras"] = {"depth": b"3"}
    with pytest.raises(InputError, match=r"lease\.extras\.depth must be a JSON value, got bytes"):
        lease_from_map(raw)
