"""A step streamed group by group is the whole batch's step."""

import dataclasses

import numpy as np
import pytest
import torch

from asyncrl.algo.needs import marks_of
from asyncrl.algo.objective import build_objective
from asyncrl.algo.registry import parts, resolve
from asyncrl.train.step.step_batch import build_step_batch, to_advantage_batch
from tests.train.factories import batch_of_groups, group, with_flat_groups
from tests.train.one_step import make_engine, make_stream, snapshot, step_once, stream_once

AGGREGATIONS = [
    "token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "trl_grpo", "row_mean_token_sum",
    "prompt_mean", "prompt_mean_token_sum",
]  # fmt: skip
GROUP_LOCAL = [
    name
    for name in parts()["advantage"]
    if any(mark.decorator == "group_local" for mark in marks_of(resolve("advantage", name)))
]


def assert_same(model, budget=10**6, **algo):
    whole, cut = make_engine(model), make_engine(model)
    report, other = step_once(whole, **algo), stream_once(cut, budget, **algo)
    assert whole.gradients[0].abs().max() > 1e-8
    torch.testing.assert_close(cut.gradients[0], whole.gradients[0], atol=1e-6, rtol=1e-3)
    assert other.num_tokens == report.num_tokens
    assert other.num_sequences == report.num_sequences
    for name in ("grad_norm", "loss/total", "mismatch/max", "tokens", "sequences", "advantage/mean"):
        assert other.metrics.get(name) == pytest.approx(report.metrics.get(name), rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_gives_the_gradient_of_the_whole_batch(tiny_model, name):
    assert_same(tiny_model, 60, preset="decoupled_ppo", aggregation={"name": name})


@pytest.mark.parametrize("preset", ["dr_grpo", "dapo", "mc_grpo", "gspo", "cispo", "kimi"])
def test_presets_give_the_gradient_of_the_whole_batch(tiny_model, preset):
    assert_same(tiny_model, preset=preset)


def test_rows_that_a_filter_drops_count_in_no_divisor(tiny_model):
    flat = [*batch_of_groups(), group("t3", [1.0, 1.0])]
    whole, cut = make_engine(tiny_model), make_engine(tiny_model)
    step_once(whole, batch=build_step_batch(flat, 0, 0), preset="dapo")
    stream_once(cut, groups=flat, preset="dapo")
    torch.testing.assert_close(cut.gradients[0], whole.gradients[0], atol=1e-6, rtol=1e-3)


def test_a_group_of_one_outcome_counts_and_takes_no_backward_pass(tiny_model):
    flat = with_flat_groups(1.0, 0.0)
    whole, cut = make_engine(tiny_model), make_engine(tiny_model)
    report = step_once(whole, batch=build_step_batch(flat, 0, 0), preset="grpo")
    other = stream_once(cut, 60, flat, preset="grpo")
    torch.testing.assert_close(cut.gradients[0], whole.gradients[0], atol=1e-6, rtol=1e-3)
    assert other.metrics["tokens"] == report.metrics["tokens"] == report.num_tokens == other.num_tokens
    assert cut.backward_rows == 12


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_zero_divides_the_gradient_before_it_is_clipped(tiny_model, zero_stage):
    whole, cut = make_engine(tiny_model, zero_stage), make_engine(tiny_model, zero_stage)
    norms = [
        (step_once(whole).metrics["grad_norm"], stream_once(cut, 60).metrics["grad_norm"]) for _ in range(2)
    ]
    for one, other in norms:
        assert other == pytest.approx(one, rel=1e-4)
    for name, tensor in snapshot(whole).items():
        torch.testing.assert_close(snapshot(cut)[name], tensor, atol=1e-4, rtol=0)


def test_a_batch_other_than_the_streamed_groups_is_left_to_a_whole_step(tiny_model):
    clean, engine = make_engine(tiny_model), make_engine(tiny_model)
    first, second, third = batch_of_groups()
    streamed = make_stream(engine)
    streamed.add([first, second])
    assert streamed.finish(build_step_batch([second, third], 0, 0)) is None
    step_once(engine)
    step_once(clean)
    torch.testing.assert_close(engine.gradients[0], clean.gradients[0])


def test_a_group_that_is_not_finite_is_left_to_a_whole_step(tiny_model):
    engine = make_engine(tiny_model)
    first, second, third = batch_of_groups()
    broken = dataclasses.replace(
        second.trajectories[0],
        behavior_logprobs=np.full(second.trajectories[0].num_tokens, np.nan, np.float32),
    )
    second = dataclasses.replace(second, trajectories=(broken, *second.trajectories[1:]))
    streamed = make_stream(engine)
    streamed.add([first])
    streamed.add([second, third])
    before = snapshot(engine)
    assert streamed.finish(build_step_batch([first, second, third], 0, 0)) is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.weights())
    assert engine.finite()


@pytest.mark.parametrize("name", GROUP_LOCAL)
def test_an_advantage_called_group_local_reads_nothing_beyond_its_group(name):
    params = {"rollout_agents": ["agent0"]} if name == "hierarchical_grpo" else {}
    objective = build_objective({"preset": "grpo", "advantage": {"name": name, **params}})
    groups = batch_of_groups()

    def estimate(batch):
        likely = [[0.1 * (t.episode_index + k**2) for k in range(3)] for t in batch.trajectories]
        return objective.estimate(
            to_advantage_batch(batch, {"answer_probability": torch.tensor(likely)})
        ).advantages

    whole = estimate(build_step_batch(groups, 0, 0))
    row = 0
    for one in groups:
        batch = build_step_batch([one], 0, 0)
        alone = estimate(batch)
        rows = len(batch.trajectories)
        torch.testing.assert_close(whole[row : row + rows, : alone.shape[1]], alone)
        row += rows
    assert whole.abs().max() > 0
