"""The guard as a callback: where a run has it, what it says, and by what it multiplies the learning rate."""

from types import SimpleNamespace

import pytest

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.extensions.collapse_guard.rule import GuardState, saved_scale
from asyncrl.extensions.collapse_guard.trainer import CollapseGuard
from asyncrl.train.loop.configured import configured
from tests.train.contexts import context


def guards(**sections):
    """Return the guards of a run."""
    config = parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld"}, "algo": {"preset": "spiral"}} | sections
    )
    # Any rank but the first: it talks to no other process.
    given = context(config, build_objective(config.algo), SimpleNamespace(rank=1))
    return [one for one in configured(given) if isinstance(one, CollapseGuard)]


def test_against_a_population_no_guard_takes_stronger_opponents_for_a_collapse():
    against = {"opponents": {"choose": "uniform"}, "lora": {"rank": 4}}
    assert guards() == [], "it is off by default"
    assert len(guards(train={"collapse_guard": True})) == 1
    assert guards(train={"collapse_guard": True}, **against) == []


def test_its_state_comes_back_from_a_checkpoint_and_scales_the_rate():
    guard, again = CollapseGuard(None, None), CollapseGuard(None, None)
    guard.state = GuardState(scale=0.25)
    again.load_state_dict(guard.state_dict())
    assert (again.state, again.rate_factor) == (guard.state, 0.25)
    assert saved_scale({"guard": guard.state_dict()}) == pytest.approx(0.25)
    assert saved_scale({}) == 1.0
