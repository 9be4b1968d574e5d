"""Which groups runs show to each other, which they take, and which a step draws."""

from dataclasses import replace

import numpy as np
import pytest

from asyncrl.extensions.swarm.curation import (
    MAX_EPISODES,
    Offered,
    Terms,
    adopted,
    component_names,
    drawn,
    published,
    refusal,
)
from asyncrl.types import FailureClass, Task
from tests.train.factories import group, trajectory

INPUTS = {"images", "routed_experts"}
TERMS = Terms("gridworld", num_token_ids=250, max_tokens=18, max_reward=1.0, inputs=INPUTS)


def plain(name="t", rewards=(0.0, 1.0), **changes):
    """A group of whole episodes of one agent."""
    made = group(name, list(rewards))
    trajectories = tuple(replace(t, info={"attempts": 2}, **changes) for t in made.trajectories)
    return replace(made, trajectories=trajectories)


def test_others_see_the_share_of_groups_with_a_signal_and_nothing_that_is_only_this_runs():
    told = replace(plain("told"), worker="w")
    told = replace(told, trajectories=(*told.trajectories, trajectory("told", 2, failure=FailureClass.AGENT)))
    groups = [told, plain("flat", [1.0, 1.0]), group("team", [0.0, 1.0])]
    (shown,) = published(groups, 0, 1.0, 7, INPUTS)
    assert (shown.id, shown.worker, len(shown.trajectories)) == ("g-told", "", 2)
    assert all(t.info == {} and t.timing == {} for t in shown.trajectories)
    assert [t.reward for t in shown.trajectories] == [0.0, 1.0]
    assert published(groups, 0, 0.0, 7, INPUTS) == []
    many = [plain(f"t{i}") for i in range(400)]
    half = [len(published(many, step, 0.5, 7, INPUTS)) for step in range(3)]
    assert all(160 < n < 240 for n in half)
    assert len(set(half)) > 1, "other groups in other steps"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (plain(), ""),
        (replace(plain(), task=Task("t", "calculator")), "task"),
        (replace(plain(), task=Task("t", "gridworld", split="test")), "task"),
        (plain(rewards=[0.0, 1.0] * (MAX_EPISODES // 2) + [1.0]), "size"),
        (plain(rewards=[0.0, 1.0, 0.0, 1.0]), "size"),
        (plain(token_ids=np.full(17, 250, np.int32)), "tokens"),
        (plain(extras={"routed_experts": np.zeros((17, 1, 1), np.uint8)}), "tokens"),
        (plain(rewards=[0.0, -1.5]), "reward"),
        (plain(components={"goal": 2.0}), "reward"),
        (plain(rewards=[1.0, 1.0]), "signal"),
    ],
)
def test_a_group_is_refused_for_what_this_run_cannot_train(changed, why):
    assert refusal(changed, TERMS) == why


def test_an_adopted_group_has_this_runs_version_and_the_peers_log_probabilities():
    taken = adopted(replace(plain(), version=900), "swarm/ab", "peer", 3)
    assert (taken.id, taken.task.id, taken.version) == ("swarm/ab", "swarm/ab/t", 3)
    for mine, theirs in zip(taken.trajectories, plain().trajectories, strict=True):
        assert mine.versions.tolist() == np.where(theirs.loss_mask, 3, -1).tolist()
        assert mine.behavior_logprobs.tolist() == theirs.behavior_logprobs.tolist()
        assert (mine.task_id, mine.info, mine.peer) == ("swarm/ab/t", {}, "peer")


def test_a_step_draws_from_every_peer_before_it_draws_a_second_of_one():
    offered = [Offered(f"a{i}", "a", 5) for i in range(9)] + [Offered("b0", "b", 5), Offered("c0", "c", 5)]
    names = drawn(offered, 6, 4, 2, 0)
    assert sorted(name[0] for name in names) == ["a", "a", "b", "c"]
    assert names == drawn(offered, 6, 4, 2, 0)
    assert {tuple(sorted(drawn(offered, 6, 4, 2, seed))) for seed in range(20)} != {tuple(sorted(names))}
    assert len(drawn(offered, 6, 20, 2, 0)) == 11
    assert drawn(offered, 8, 4, 2, 0) == [], "all came more than two versions ago"


def test_the_components_of_groups_are_those_of_any_usable_trajectory():
    assert component_names([plain(), plain(components={"speed": 1.0})]) == {"goal", "form", "speed"}
    assert component_names([]) == frozenset()
