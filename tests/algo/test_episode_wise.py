"""Where an agent plays, episodes are compared and not their branches."""

import pytest
import torch

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.objective import build_objective
from asyncrl.algo.settings import default_unit
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError


def one_success_beside_a_failure_of_five_branches():
    return AdvantageBatch(
        rewards=torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        group=torch.zeros(6, dtype=torch.long),
        mask=torch.tensor([[True, False]] * 6),
        rollouts=["t/0", *["t/1"] * 5],
    )


@pytest.mark.parametrize(
    ("advantage", "unit", "expected"),
    [
        ({"name": "grpo", "std": "none"}, "branches", [5 / 6, *[-1 / 6] * 5]),
        ({"name": "grpo", "std": "none"}, "episodes", [0.5, *[-0.5] * 5]),
        ({"name": "rloo"}, "episodes", [1.0, *[-1.0] * 5]),
        ({"name": "grpo"}, "episodes", [0.5**0.5, *[-(0.5**0.5)] * 5]),
    ],
)
def test_an_episode_counts_once_however_many_branches_it_has(advantage, unit, expected):
    objective = build_objective({"advantage": advantage, "baseline_unit": unit})
    found = objective.estimate(one_success_beside_a_failure_of_five_branches()).advantages
    assert found[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert found[:, 1].tolist() == [0.0] * 6


def test_episodes_of_one_row_are_compared_as_ever():
    batch = AdvantageBatch(
        rewards=torch.tensor([1.0, 0.0, 0.5]),
        group=torch.zeros(3, dtype=torch.long),
        mask=torch.ones(3, 2, dtype=torch.bool),
        rollouts=["t/0", "t/1", "t/2"],
    )
    alike = [
        build_objective({"baseline_unit": unit}).estimate(batch).advantages
        for unit in ("branches", "episodes")
    ]
    assert torch.equal(*alike)


def test_it_is_the_default_where_an_agent_plays_and_the_advantage_can():
    def unit(env, **algo):
        found = parse_config({"model": {"path": "m"}, "env": {"name": env}, "algo": algo})
        return found.algo.get("baseline_unit", "branches")

    assert unit("agent", preset="decoupled_ppo") == unit("agent", preset="rloo") == "episodes"
    assert unit("gridworld", preset="grpo") == "branches"
    assert (
        unit("agent", preset="gigpo") == unit("agent", preset="grpo", baseline_unit="branches") == "branches"
    )
    assert default_unit({}) == "episodes"
    with pytest.raises(
        ConfigError, match=r"algo\.baseline_unit: 'episodes' is for the advantages dr_grpo, gpg, grpo"
    ):
        build_objective({"advantage": {"name": "gigpo"}, "baseline_unit": "episodes"})
