"""Agents that are updated one after the other, each with what the earlier ones have changed."""

import dataclasses

import pytest
import torch

from asyncrl.algo.sequential_agents import CAP
from asyncrl.train.step_batch import build_step_batch, pad_rows
from tests.train.factories import batch_of_groups
from tests.train.one_step import make_engine, step_once

ALGO = {"preset": "dr_mas"}


def team_batch(*agents):
    """The fixed groups, whose episodes 2k and 2k + 1 are what two agents said in rollout k; only of `agents`."""
    groups = []
    for group in batch_of_groups():
        said = [
            dataclasses.replace(t, info={**t.info, "rollout": t.episode_index // 2})
            for t in group.trajectories
            if t.info["agent"] in agents
        ]
        groups.append(dataclasses.replace(group, trajectories=tuple(said)))
    return build_step_batch(groups, 0, 0)


def log_probabilities(engine, batch):
    rows = pad_rows(batch, range(batch.num_rows))
    with torch.no_grad():
        return engine.logp(rows.token_ids, rows.mask, 1.0)


@pytest.fixture(scope="module")
def sequential(tiny_model):
    engine = make_engine(tiny_model)
    report = step_once(engine, batch=team_batch("agent0", "agent1"), **ALGO, sequential_agents=True)
    return engine, report


def test_each_agent_has_an_optimizer_step_of_its_own(sequential, tiny_model):
    engine, _ = sequential
    first = make_engine(tiny_model)
    step_once(first, batch=team_batch("agent0"), **ALGO)
    assert len(engine.gradients) == 2
    torch.testing.assert_close(engine.gradients[0], first.gradients[0], atol=1e-6, rtol=1e-3)


def test_later_agents_learn_from_advantages_weighed_by_what_earlier_ones_changed(sequential, tiny_model):
    first, mine = make_engine(tiny_model), team_batch("agent0")
    before = log_probabilities(first, mine)
    step_once(first, batch=mine, **ALGO)
    changed = (log_probabilities(first, mine) - before).double().sum(-1)
    ratios = {
        (t.task_id, t.rollout): float(ratio.exp().clamp(1 / CAP, CAP))
        for t, ratio in zip(mine.trajectories, changed, strict=True)
    }
    assert max(abs(ratio - 1) for ratio in ratios.values()) > 0.01, "the first update changed something"

    both = team_batch("agent0", "agent1")
    plain = step_once(make_engine(tiny_model), batch=both, **ALGO).token_values["advantages"]
    weighed = sequential[1].token_values["advantages"]
    for row, t in enumerate(both.trajectories):
        factor = 1.0 if t.info["agent"] == "agent0" else ratios[t.task_id, t.rollout]
        torch.testing.assert_close(weighed.row(row), plain.row(row) * factor, atol=1e-5, rtol=1e-4)


def test_the_cut_into_micro_batches_changes_nothing(sequential, tiny_model):
    cut = make_engine(tiny_model)
    step_once(cut, 60, batch=team_batch("agent0", "agent1"), **ALGO, sequential_agents=True)
    for one, other in zip(cut.gradients, sequential[0].gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


def test_a_single_agent_is_updated_as_ever(tiny_model):
    engines = [make_engine(tiny_model) for _ in range(2)]
    for engine, one_by_one in zip(engines, (True, False), strict=True):
        step_once(engine, batch=team_batch("agent0"), **ALGO, sequential_agents=one_by_one)
    torch.testing.assert_close(engines[0].gradients, engines[1].gradients)
