"""A group that cannot be trained is found before its batch is, and its worker is set apart."""

from dataclasses import replace

import numpy as np
import pytest

from asyncrl.data.codec import encode_group
from asyncrl.errors import StaleError
from asyncrl.train.loop.examination import Examiner, refusal
from tests.train.factories import group
from tests.train.one_step import make_engine
from tests.train.scripted_run import Scripted, make_trainer


def changed(one, **changes):
    """Return the group with another last trajectory."""
    return replace(one, trajectories=(*one.trajectories[:-1], replace(one.trajectories[-1], **changes)))


GOOD = group("a", [0.0, 1.0])
EXPERTS = {"routed_experts": np.zeros((3, 2, 2), np.uint8)}
UNFIT = {
    "experts of a model without": ((), changed(GOOD, extras=EXPERTS), "this run records none"),
    "no greedy reward": (("greedy",), changed(GOOD, info={}), "lacks the reward of a greedy one"),
    "no answer": (("answers",), changed(GOOD, info={}), "came without one"),
}


@pytest.mark.parametrize(("needs", "unfit", "why"), UNFIT.values(), ids=list(UNFIT))
def test_a_group_that_cannot_be_prepared_is_named_with_the_reason_and_its_neighbours_are_not(
    needs, unfit, why
):
    other = group("b", [1.0, 0.0])
    found = Examiner(needs, 1).examine([encode_group(other), encode_group(unfit)], 0)
    assert [one.id for one in found.groups] == ["g-b"]
    assert found.bodies == [encode_group(other)]
    assert list(found.unfit) == ["g-a"]
    assert why in found.unfit["g-a"]
    assert refusal(found.unfit, 3).startswith("1 groups cannot be trained (step 3): that of lease g-a: ")


def test_a_group_that_is_too_old_is_the_buffers_mistake_and_ends_the_trainer():
    with pytest.raises(StaleError):
        Examiner((), 1).examine([encode_group(GOOD)], 2)


class Refusing(Scripted):
    """Gives a batch with an unfit group, until its worker is rejected."""

    def __init__(self, unfit, good):
        super().__init__([[unfit, group("c", [0.0, 1.0])]])
        self.good, self.rejected = good, []

    def reject(self, step, leases, reason, engines=None):
        self.rejected.append((step, leases, reason))
        self.batches[step] = {one.id: encode_group(one) for one in (self.good, group("c", [0.0, 1.0]))}
        return ["mallory"]


@pytest.mark.parametrize("schedule", ["partial", "periodic"])
def test_a_trainer_gives_the_batch_back_and_trains_what_it_gets_instead(tiny_model, schedule):
    script = Refusing(changed(GOOD, extras=EXPERTS), GOOD)
    trainer = make_trainer(make_engine(tiny_model), script, 1, max_staleness=0, schedule=schedule)
    assert trainer.run() == 1
    ((step, leases, reason),) = script.rejected
    assert (step, leases) == (0, ["g-a"])
    assert "this run records none" in reason
    assert trainer.totals.trained_groups == 2
