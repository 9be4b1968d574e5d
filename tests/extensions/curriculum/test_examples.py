"""Examples that a lease carries are read strictly by those who know them."""

import pytest

from asyncrl.data.codec import lease_from_map, lease_to_map
from asyncrl.errors import InputError
from asyncrl.extensions.curriculum.examples import examples_extra, examples_of
from asyncrl.types import Lease, Task


def leased(extras):
    """A lease as a worker gets it."""
    return lease_from_map(lease_to_map(Lease("l", Task("t", "gridworld"), 0, 1, 2, 1, 60.0, extras=extras)))


def test_a_lease_without_extras_has_no_examples():
    assert examples_extra(()) == {}
    assert examples_of(leased({})) == ()


def test_examples_come_back_beside_what_others_wrote():
    assert examples_of(leased({**examples_extra(("way 1", "way 2")), "depth": 3})) == ("way 1", "way 2")


@pytest.mark.parametrize("raw", ["way 1", [1], None, {"0": "way 1"}])
def test_examples_that_are_no_texts_are_refused(raw):
    with pytest.raises(InputError, match=r"lease.extras.examples must be a list of texts"):
        examples_of(leased({"examples": raw}))
