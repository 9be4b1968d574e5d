"""Advantages do not depend on how many groups are estimated at once, nor on the tokens between sampled ones."""

import numpy as np
import pytest
import torch

from asyncrl.algo.needs import marks_of
from asyncrl.algo.objective import build_objective
from asyncrl.algo.registry import parts, resolve
from asyncrl.train.step import estimates
from asyncrl.train.step.estimates import estimate_advantages
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_tensors import StepTensors
from tests.train.factories import batch_of_groups

GROUP_LOCAL = [
    name
    for name in parts()["advantage"]
    if any(mark.decorator == "group_local" for mark in marks_of(resolve("advantage", name)))
]


def tensors_of(batch):
    rng = np.random.default_rng(0)
    values = Ragged(torch.from_numpy(rng.random(int(batch.counts.sum())).astype(np.float32)), batch.counts)
    likely = torch.from_numpy(rng.random((batch.num_rows, 3)).astype(np.float32))
    return StepTensors({"proximal_logp": values, "entropy": values}, {"answer_probability": likely})


@pytest.mark.parametrize("name", GROUP_LOCAL)
def test_a_few_groups_at_a_time_are_estimated_as_all_together(monkeypatch, name):
    params = {"rollout_agents": ["agent0"]} if name == "hierarchical_grpo" else {}
    objective = build_objective({"preset": "grpo", "advantage": {"name": name, **params}})
    batch = build_step_batch(batch_of_groups(), 0, 0)
    assert objective.group_local
    whole = estimate_advantages(objective, batch, tensors_of(batch), 0.0)
    monkeypatch.setattr(estimates, "CELLS", 1)
    widths = []
    inner = estimates.to_advantage_batch
    monkeypatch.setattr(estimates, "to_advantage_batch", lambda *args: widths.append(args[2]) or inner(*args))
    cut = estimate_advantages(objective, batch, tensors_of(batch), 0.0)
    assert widths == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    torch.testing.assert_close(cut.advantages.values, whole.advantages.values, rtol=1e-5, atol=1e-6)
    assert whole.advantages.values.abs().max() > 0
    assert cut.keep == whole.keep
    found, expected = objective.report(cut.metrics), objective.report(whole.metrics)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_an_advantage_that_reads_the_whole_batch_is_estimated_at_once(monkeypatch):
    objective = build_objective({"preset": "reinforce_pp"})
    assert not objective.group_local
    monkeypatch.setattr(estimates, "CELLS", 1)
    batch = build_step_batch(batch_of_groups(), 0, 0)
    found = estimate_advantages(objective, batch, tensors_of(batch), 0.0)
    assert float(found.advantages.values.mean()) == pytest.approx(0.0, abs=1e-6)
