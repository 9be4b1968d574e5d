"""Training steps: what a cut into micro-batches or ranks must not change, and what a step may not do."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.algo.objective import Objective, build_objective
from asyncrl.errors import ConfigError
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from tests.train.factories import batch_of_groups, group, with_flat_groups
from tests.train.one_step import make_engine, saved_weights, snapshot, step_once
from tests.train.scripted_run import Scripted, groups_at, make_trainer


def on_policy_batch(engine):
    """The fixed groups with the log-probabilities that the engine gives each row alone."""
    batch = build_step_batch(batch_of_groups(), 0, 0)
    exact = []
    for number, t in enumerate(batch.trajectories):
        rows = pad_rows(batch, [number])
        with torch.no_grad():
            logp = engine.logp(rows.token_ids, rows.mask, 1.0)
        exact.append(dataclasses.replace(t, behavior_logprobs=logp[0].numpy().astype(np.float32)))
    return dataclasses.replace(batch, trajectories=tuple(exact))


@pytest.mark.parametrize("preset", ["decoupled_ppo", "grpo", "gspo"])
def test_the_cut_into_micro_batches_changes_nothing(tiny_model, preset):
    whole = make_engine(tiny_model)
    report = step_once(whole, preset=preset)
    for budget in (60, 1):
        cut = make_engine(tiny_model)
        other = step_once(cut, budget, preset=preset)
        torch.testing.assert_close(cut.gradients[0], whole.gradients[0], atol=1e-6, rtol=1e-3)
        for name in ("grad_norm", "loss/total", "mismatch/max", "tokens", "sequences"):
            assert other.metrics[name] == pytest.approx(report.metrics[name], rel=1e-4, abs=1e-6)


def test_the_first_ratio_of_an_on_policy_batch_is_exactly_one(tiny_model):
    engine = make_engine(tiny_model)
    metrics = step_once(engine, 60, on_policy_batch(engine)).metrics
    assert (metrics["ratio/min"], metrics["ratio/max"]) == pytest.approx((1.0, 1.0), abs=1e-6)
    assert metrics["mismatch/max"] < 1e-5
    assert metrics["behavior_weight/max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["lag/max"] == 0


def test_recomputed_proximal_log_probabilities_are_those_before_the_first_minibatch(tiny_model):
    engine = make_engine(tiny_model)
    batch = on_policy_batch(engine)
    metrics = step_once(engine, batch=batch, num_minibatches=3).metrics
    assert len(engine.gradients) == 3
    assert metrics["mismatch/max"] < 1e-5  # proximal against behavior: the weights of the start, all along
    assert metrics["ratio/max"] > 1 + 1e-4  # current against proximal: later minibatches have moved


def test_a_step_moves_probability_towards_what_earned_more(tiny_model):
    engine = make_engine(tiny_model)
    batch = on_policy_batch(engine)
    rows = pad_rows(batch, range(12))
    step_once(engine, batch=batch)
    with torch.no_grad():
        after = engine.logp(rows.token_ids, rows.mask, 1.0)
    change = (after - rows.behavior_logp).sum(-1)
    good = torch.tensor([t.reward == 1.0 for t in batch.trajectories])
    bad = torch.tensor([t.reward == 0.0 for t in batch.trajectories])
    assert change[good].mean() > 0 > change[bad].mean()


@pytest.mark.parametrize(
    "algo",
    [
        {"preset": "grpo"},
        {"preset": "decoupled_ppo"},
        {"preset": "gspo"},
        {"preset": "sat", "proximal": {"name": "behavior"}, "kl": {"coef": 0.0}},
        {"preset": "grpo", "corrections": ["m2po"], "denominator": "kept"},
    ],
)
def test_rows_without_advantages_take_no_backward_pass_and_change_nothing(tiny_model, algo, monkeypatch):
    batch = build_step_batch(with_flat_groups(1.0, 0.0), 0, 0)
    for minibatches in (1, 2):
        engine, all_rows = make_engine(tiny_model), make_engine(tiny_model)
        report = step_once(engine, 60, batch, minibatches, **algo)
        with monkeypatch.context() as patch:
            patch.setattr(Objective, "weighed_by_advantage", lambda *_: False)
            expected = step_once(all_rows, 60, batch, minibatches, **algo)
        assert len(engine.gradients) == len(all_rows.gradients) == minibatches
        for one, other in zip(engine.gradients, all_rows.gradients, strict=True):
            # Sums over other numbers of rows are rounded elsewhere.
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
        assert report.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
        assert engine.backward_rows == 12 < all_rows.backward_rows == 20


def test_a_batch_without_any_advantage_has_no_gradient_and_all_metrics(tiny_model):
    engine = make_engine(tiny_model)
    before = snapshot(engine)
    batch = build_step_batch([group("a", [1.0, 1.0]), group("b", [0.0, 0.0])], 0, 0)
    report = step_once(engine, batch=batch, preset="grpo")
    assert (report.skipped, report.metrics["grad_norm"]) == ("", 0)
    assert report.metrics["tokens"] == report.num_tokens == 24
    assert report.metrics["mismatch/max"] > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.weights())


def test_rows_without_advantages_are_trained_where_another_term_reads_them(tiny_model):
    engine = make_engine(tiny_model)
    step_once(engine, 60, build_step_batch(with_flat_groups(1.0), 0, 0), preset="grpo", entropy_coef=0.01)
    assert engine.backward_rows == 16


def test_entropies_are_recorded_where_the_objective_computes_them(tiny_model):
    engine = make_engine(tiny_model)
    assert "entropies" not in step_once(engine).token_values
    batch = on_policy_batch(engine)
    rows = pad_rows(batch, range(12))
    with torch.no_grad():
        wanted = engine.outputs(rows.token_ids, rows.mask, 1.0, ("entropy",))["entropy"]
    found = step_once(engine, 60, batch=batch, preset="decoupled_ppo", entropy_coef=0.01).token_values[
        "entropies"
    ]
    torch.testing.assert_close(found.values, wanted[rows.mask], atol=1e-5, rtol=1e-4)


def test_a_group_with_a_log_probability_that_is_not_finite_is_left_out_by_name(tiny_model):
    engine, alone = make_engine(tiny_model), make_engine(tiny_model)
    batch = build_step_batch(batch_of_groups(), 0, 0)
    first = batch.trajectories[0]
    broken = np.where(first.loss_mask, np.nan, 0.0).astype(np.float32)
    rows = (dataclasses.replace(first, behavior_logprobs=broken), *batch.trajectories[1:])
    report = step_once(engine, batch=dataclasses.replace(batch, trajectories=rows))
    assert report.left_out == {
        0: "behavior_logp of task t0 episode 0 holds 3 NaN or infinite value(s) on sampled tokens"
    }
    step_once(alone, batch=build_step_batch(batch_of_groups()[1:], 0, 0))
    expected = snapshot(alone)
    for name, tensor in engine.weights():
        assert torch.allclose(tensor, expected[name], atol=1e-6)


def test_a_batch_filtered_to_nothing_is_skipped_and_nothing_applied(tiny_model):
    engine = make_engine(tiny_model)
    before = snapshot(engine)
    no_signal = build_step_batch([group("a", [1.0, 1.0]), group("b", [0.0, 0.0])], 0, 0)
    report = step_once(engine, batch=no_signal, preset="dapo")
    assert report.skipped == "every trajectory was filtered out"
    assert report.num_tokens == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.weights())


def test_the_trained_tokens_are_the_sampled_ones(tiny_model):
    report = step_once(make_engine(tiny_model))
    assert (report.num_tokens, report.num_sequences) == (4 * 3 * (1 + 3 + 2), 12)
    assert report.metrics["tokens"] == report.num_tokens


@pytest.mark.parametrize(
    ("algo", "missing"),
    [
        ({"preset": "grpo", "proximal": {"name": "snapshot"}}, "snapshots"),
        ({"preset": "ppo_ewma"}, "average"),
        ({"preset": "igpo"}, "answers"),
        ({"preset": "grpo", "kl": {"coef": 0.1}}, "reference"),
        ({"preset": "opd"}, "teacher"),
        ({"preset": "ppo"}, "critic"),
    ],
)
def test_an_objective_whose_auxiliary_model_was_not_loaded_is_refused(algo, missing):
    with pytest.raises(ConfigError, match=f"needs '{missing}', but no such model was loaded"):
        AuxiliaryModels(build_objective(algo))


RANKED = [
    "1",
    "2",
    "3",
    "1-streamed",
    "2-streamed",
    "3-streamed",
    "1-together",
    "3-together",
    "2-flat",
    "3-flat",
]
SCHEDULES = ["partial", "periodic"]


@pytest.fixture(scope="module")
def pair(tiny_model, two_ranks, tmp_path_factory):
    """What two ranks reported and saved after two steps, by ZeRO stage."""
    out = tmp_path_factory.mktemp("ranks")
    two_ranks.call(
        "tests.train.one_step",
        tiny_model,
        str(out),
        *RANKED,
        *(f"trainer-{schedule}" for schedule in SCHEDULES),
        "late",
        "shares",
    )
    return out


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", RANKED)
def test_two_ranks_train_as_one(tiny_model, pair, zero_stage):
    alone = make_engine(tiny_model)
    batch = build_step_batch(with_flat_groups(1.0) if "flat" in zero_stage else batch_of_groups(), 0, 0)
    reports = [step_once(alone, 60, batch).metrics for _ in range(2)]
    for one, other in zip(reports, json.loads((pair / f"{zero_stage}.json").read_text()), strict=True):
        for name in ("loss/total", "grad_norm", "tokens", "mismatch/max"):
            assert other[name] == pytest.approx(one[name], rel=1e-4)
    saved = saved_weights(pair / f"checkpoint-{zero_stage}")
    assert set(saved) == set(load_file(Path(tiny_model) / "model.safetensors"))
    for name, tensor in snapshot(alone).items():
        torch.testing.assert_close(saved[name], tensor, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_rank_besides_the_first_holds_its_own_rows_alone(pair):
    first, second = (json.loads((pair / f"shares-{rank}.json").read_text()) for rank in range(2))
    assert (first["trajectories"], second["trajectories"]) == (12, 0)
    assert first["held"] == [[], []]
    assert [len(rows) for rows in second["held"]] == [6, 3]
    assert set(second["held"][1]) < set(range(6))
    assert first["values"] == 4 * 3 * (1 + 3 + 2) and second["values"] == 0


@pytest.mark.slow
def test_a_batch_may_come_later_than_a_collective_waits(pair):
    """The rank that does not ask the buffer meets the other one at every look, not in one long collective."""
    assert [(pair / f"late-{rank}").read_text() for rank in range(2)] == ["1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_trainers_loop_on_two_ranks_trains_as_on_one_and_decodes_each_group_once(
    tiny_model, pair, schedule
):
    alone = make_engine(tiny_model)
    script = Scripted([groups_at(0), groups_at(1)])
    make_trainer(alone, script, 2, max_staleness=0, schedule=schedule).run()
    seen = json.loads((pair / f"trainer-{schedule}.json").read_text())
    assert [tuple(call) for call in seen["calls"]] == script.calls
    assert (seen["decoded"], seen.get("encoded", 0)) == (4, 0)
    saved = saved_weights(pair / f"checkpoint-trainer-{schedule}")
    for name, tensor in snapshot(alone).items():
        torch.testing.assert_close(saved[name], tensor, atol=1e-4, rtol=0)
