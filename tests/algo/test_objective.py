"""The `algo` section put together: presets, corrections, denominators, regularisers, diagnostics."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.objective import build_objective
from asyncrl.algo.presets import known_presets
from asyncrl.extensions.critic.value import value_term
from tests.algo.factories import EXTRAS, OF_TOKENS, advantage_batch, loss_fields, loss_inputs
from tests.conformance.tensors import count_totals


def build(**algo):
    if algo.get("preset") == "dr_grpo":
        algo["aggregation"] = {"horizon": 32}
    return build_objective(algo)


def loss_of(objective, inputs: LossInputs, **options):
    totals = count_totals(inputs.mask, inputs.group, objective.horizon)
    return objective.loss(inputs, totals, **options)


@pytest.mark.parametrize("preset", known_presets())
def test_every_preset_gives_advantages_and_a_gradient(preset):
    objective = build(preset=preset)
    batch = advantage_batch(1, groups=3, size=4)
    estimate = objective.estimate(batch)
    assert torch.isfinite(estimate.advantages).all()
    fields = loss_fields(2, rows=12, width=8, spread=0.05)
    fields |= {"mask": batch.mask, "advantages": estimate.advantages, "group": batch.group}
    divergence = fields["teacher_kl"].requires_grad_()
    logp = fields["logp"].requires_grad_()
    loss, metrics = loss_of(objective, LossInputs.of(fields))
    leaf = divergence if "teacher_logits" in objective.needs else logp
    grad = torch.autograd.grad(loss, leaf)[0]
    assert torch.isfinite(loss)
    assert grad.abs().sum() > 0
    report = objective.report(metrics)
    assert 0 < report["ess/token"] <= 1
    assert 0 < report["ess/sequence"] <= 1


@pytest.mark.parametrize(
    ("algo", "coefs", "weighed"),
    [
        ({"preset": "grpo"}, (0.0, 0.0), True),
        ({"preset": "grpo", "kl": {"coef": 0.1}}, (0.1, 0.0), False),
        ({"preset": "grpo", "kl": {"coef": 0.1}}, (0.0, 0.0), True),
        ({"preset": "grpo", "kl": {"coef": 0.1, "where": "reward"}}, (0.1, 0.0), True),
        ({"preset": "grpo", "entropy_coef": 0.01}, (0.0, 0.01), False),
        ({"preset": "grpo", "entropy_coef": 0.01}, (0.0, 0.0), True),
        ({"preset": "grpo", "success_nll_coef": 0.1}, (0.0, 0.0), False),
        ({"preset": "grpo", "corrections": ["m2po"]}, (0.0, 0.0), True),
        ({"preset": "grpo", "loss": "tests.algo.own_parts:adaptive_region"}, (0.0, 0.0), True),
        ({"preset": "grpo", "loss": "sft"}, (0.0, 0.0), False),
        ({"preset": "ppo"}, (0.0, 0.0), False),
        ({"preset": "kimi"}, (0.0, 0.0), False),
    ],
)
def test_rows_without_advantages_have_no_gradient_unless_another_term_gives_them_one(algo, coefs, weighed):
    assert build(**algo).weighed_by_advantage(*coefs) is weighed


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_nan_is_reported_with_the_name_of_its_tensor(name):
    fields = loss_fields(0)
    row, token = fields["mask"].nonzero()[-1].tolist()
    fields[name][row, token] = torch.nan
    inputs = LossInputs.of(fields)
    with pytest.raises(ValueError, match=rf"^{name} of row {row} holds 1 NaN"):
        loss_of(build(preset="grpo"), inputs)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_score_or_reward_that_is_not_finite_is_reported_with_its_row(value):
    fields = loss_fields(0)
    fields["scores"][2] = value
    with pytest.raises(ValueError, match=r"^scores of row 2 holds 1 NaN or infinite value\(s\)$"):
        loss_of(build(preset="grpo"), LossInputs.of(fields))
    rewards = advantage_batch(0).rewards.clone()
    rewards[5] = value
    with pytest.raises(ValueError, match=r"^rewards of row 5 holds 1 NaN"):
        advantage_batch(0, rewards=rewards)


def test_a_wrong_shape_is_reported_with_the_name_of_its_tensor():
    fields = loss_fields(0)
    fields["behavior_logp"] = fields["behavior_logp"][:, 1:]
    with pytest.raises(ValueError, match="behavior_logp has shape"):
        LossInputs.of(fields)


def test_corrections_multiply_and_keep_the_original_denominator():
    inputs = loss_inputs(3)
    plain = build(loss="ppo_clip", corrections=[])
    masked = build(loss="ppo_clip", corrections=[{"name": "token_band", "low": 0.7, "high": 1.4}])
    weight, metrics = masked.correction_weight(inputs)
    rejected = 1 - weight.sum() / inputs.mask.sum()
    assert 0 < rejected < 1
    expected = (plain.loss_fn(inputs).token_loss * weight).sum() / inputs.mask.sum()
    torch.testing.assert_close(loss_of(masked, inputs)[0], expected)
    reported = metrics["correction/token_band/rejected_fraction"]
    assert reported.total / reported.count == pytest.approx(float(rejected))


def test_rows_of_other_runs_are_trained_and_left_out_of_what_is_told_of_the_own_policies():
    objective = build(preset="grpo")
    fields = loss_fields(3, rows=4, width=8, spread=0.05)
    fields["behavior_logp"] = fields["behavior_logp"].clone()
    fields["behavior_logp"][2:] -= 3.0
    foreign = torch.tensor([False, False, True, True])
    loss, metrics = loss_of(objective, LossInputs.of({**fields, "own_rows": ~foreign}))
    loss_unmarked, unmarked = loss_of(objective, LossInputs.of(fields))
    torch.testing.assert_close(loss, loss_unmarked)
    _, alone = loss_of(objective, LossInputs.of({**fields, "mask": fields["mask"] & ~foreign[:, None]}))
    told, expected = objective.report(metrics), objective.report(alone)
    for name in ("mismatch/kl_k3", "mismatch/max", "ess/token", "ess/sequence"):
        assert told[name] == pytest.approx(expected[name])
    assert objective.report(unmarked)["mismatch/kl_k3"] > 1 > told["mismatch/kl_k3"]


def test_the_kept_denominator_counts_only_surviving_tokens():
    inputs = loss_inputs(3)
    band = [{"name": "token_band", "low": 0.7, "high": 1.4}]
    objective = build(loss="ppo_clip", corrections=band, denominator="kept")
    kept = objective.kept_mask(inputs)
    loss, _ = objective.loss(inputs, count_totals(kept))
    expected = (objective.loss_fn(inputs).token_loss * kept).sum() / kept.sum()
    torch.testing.assert_close(loss, expected)


def test_statistics_of_the_step_make_batch_wide_corrections_independent_of_the_split():
    fields = loss_fields(5, rows=8)
    corrections = [{"name": "m2po", "threshold": 0.05}, {"name": "token_tis", "batch_normalize": True}]
    objective = build(corrections=corrections)
    assert objective.needs_step_statistics
    statistics = objective.step_statistics(LossInputs.of(fields))
    whole, _ = objective.correction_weight(LossInputs.of(fields))
    halves = []
    for rows in (slice(0, 4), slice(4, 8)):
        part: dict[str, Any] = {k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in fields.items()}
        halves.append(objective.correction_weight(LossInputs.of({**part, "statistics": statistics}))[0])
    torch.testing.assert_close(torch.cat(halves), whole)


def test_a_recipe_overrides_single_parameters_of_its_preset():
    objective = build(preset="dapo", loss={"eps_high": 0.5}, corrections=[])
    assert objective.settings["loss"] == {"name": "dapo_clip", "eps_high": 0.5}
    assert objective.corrections == ()
    assert build(preset="dapo").settings["loss"] == {"name": "dapo_clip"}


def test_kl_in_the_loss_adds_its_coefficient_times_the_mean():
    inputs = loss_inputs(4)
    without, _ = loss_of(build(), inputs)
    objective = build(kl={"coef": 0.3, "estimator": "k2"})
    with_kl, metrics = loss_of(objective, inputs)
    x = inputs.logp - inputs.reference_logp
    expected = 0.3 * (0.5 * x**2 * inputs.mask).sum() / inputs.mask.sum()
    torch.testing.assert_close(with_kl - without, expected)
    adapted, _ = loss_of(objective, inputs, kl_coef=0.6)
    torch.testing.assert_close(adapted - without, 2 * expected)
    assert "reference" in objective.needs
    assert objective.report(metrics)["loss/reference_kl"] == pytest.approx(float(expected / 0.3))


def test_an_unbiased_kl_is_weighed_by_the_ratio_and_differentiated_through_it():
    """With x = log pi - log pi_ref and r = pi / mu: the term is r k3(x), its gradient r (k3(x) + k3 of x derived)."""
    logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        logp=logp,
        mask=torch.ones(1, 1, dtype=torch.bool),
        behavior_logp=torch.tensor([[-1.5]], dtype=torch.float64),
        reference_logp=torch.tensor([[-1.2]], dtype=torch.float64),
    )
    objective = build(loss="sft", kl={"coef": 1.0, "estimator": "k3", "unbiased": True})
    assert "behavior" in objective.needs
    _, metrics = loss_of(objective, inputs)
    ratio, k3 = math.exp(0.5), math.exp(-0.2) - 1 + 0.2
    assert objective.report(metrics)["loss/reference_kl"] == pytest.approx(ratio * k3)
    term = loss_of(objective, inputs)[0] - loss_of(build(loss="sft"), inputs)[0]
    gradient = torch.autograd.grad(term, logp)[0].item()
    assert gradient == pytest.approx(ratio * (k3 + 1 - math.exp(-0.2)))


def test_kl_in_the_reward_lowers_the_return():
    batch = advantage_batch(2)
    objective = build(advantage="reinforce", kl={"coef": 0.5, "estimator": "k1", "where": "reward"})
    kl = ((batch.old_logp - batch.reference_logp) * batch.mask).sum(-1)
    expected = (batch.rewards - 0.5 * kl).unsqueeze(-1) * batch.mask
    torch.testing.assert_close(objective.estimate(batch).advantages, expected)
    inputs = loss_inputs(4)
    torch.testing.assert_close(loss_of(objective, inputs)[0], loss_of(build(), inputs)[0])


def test_the_entropy_bonus_lowers_the_loss():
    inputs = loss_inputs(4)
    difference = loss_of(build(entropy_coef=0.1), inputs)[0] - loss_of(build(), inputs)[0]
    torch.testing.assert_close(difference, -0.1 * inputs.entropy.sum() / inputs.mask.sum())


def test_an_adapted_entropy_coefficient_takes_the_place_of_the_recipes():
    inputs = loss_inputs(4)
    objective = build(entropy_coef=0.1)
    difference = loss_of(objective, inputs, entropy_coef=0.3)[0] - loss_of(build(), inputs)[0]
    torch.testing.assert_close(difference, -0.3 * inputs.entropy.sum() / inputs.mask.sum())
    assert "entropy" in build(entropy_control={"target": 0.2}).needs


def test_the_likelihood_of_successes_is_mixed_in_token_by_token():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    logp = torch.tensor([[-0.5, -1.0, -2.0], [-3.0, -4.0, -9.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.full_like(logp, -1.0).detach()
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64)
    inputs = loss_inputs(
        3, rows=2, width=3, mask=mask, logp=logp, scores=scores, reference_logp=reference, entropy=None
    )
    plain = build(loss="reinforce", aggregation="token_mean")
    mixed = build(
        loss="reinforce", aggregation="token_mean", success_nll_coef=0.2, kl={"coef": 0.1, "estimator": "k2"}
    )
    assert "scores" in mixed.needs
    found, metrics = loss_of(mixed, inputs)
    difference = found - loss_of(plain, inputs)[0]
    # Of five tokens the success has 0.5 + 1 + 2; k2 from the reference is 0.125 + 0 + 0.5 + 2 + 4.5.
    assert difference.item() == pytest.approx(0.2 * 3.5 / 5 + 0.1 * 7.125 / 5)
    assert mixed.report(metrics)["success_nll"] == pytest.approx(3.5 / 5)
    assert mixed.report(metrics)["loss/success_nll"] == pytest.approx(3.5 / 5)
    of_reference = (logp - reference) * 0.1 * mask
    of_successes = -0.2 * (mask & (scores > 0).unsqueeze(-1))
    expected = (of_reference + of_successes) / 5
    torch.testing.assert_close(torch.autograd.grad(difference, logp)[0], expected.detach())


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "prompt_mean"])
def test_the_likelihood_of_successes_does_not_depend_on_the_cut_into_micro_batches(aggregation):
    fields = loss_fields(5, rows=6)
    objective = build(preset="grpo", aggregation=aggregation, success_nll_coef=0.3)
    totals = count_totals(fields["mask"], fields["group"], objective.horizon)
    whole = objective.loss(LossInputs.of(fields), totals)[0]
    parts = [
        {k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in fields.items()}
        for rows in (slice(0, 1), slice(1, 6))
    ]
    torch.testing.assert_close(sum(objective.loss(LossInputs.of(part), totals)[0] for part in parts), whole)


def test_the_loss_of_a_critic_is_a_term_of_its_own():
    values = loss_fields(4)["values"].requires_grad_()
    inputs, objective = loss_inputs(4, values=values), build(preset="ppo")
    loss, metrics = value_term(inputs, count_totals(inputs.mask), objective.settings["value"])
    assert torch.autograd.grad(loss, values)[0].abs().sum() > 0
    assert "loss/value" in metrics
    assert "loss/value" not in loss_of(objective, inputs)[1]


def test_what_no_field_is_for_is_an_extra_that_is_read_by_its_name():
    inputs = loss_inputs(4)
    assert set(inputs.extras) == set(EXTRAS)
    assert inputs.given("returns") is inputs.need("returns") is inputs.extras["returns"]
    assert (inputs.extras["returns"][~inputs.mask] == 0).all()
    assert inputs.given("entropy") is inputs.entropy
    assert inputs.given("nothing") is None
    with pytest.raises(ValueError, match=r"this loss needs LossInputs.nothing, which is None"):
        inputs.need("nothing")


def test_filtered_rows_leave_the_loss_but_stay_in_group_statistics():
    batch = advantage_batch(2)
    everything = build(preset="grpo").estimate(batch)
    filtered = build(preset="grpo", filters=["overlong"]).estimate(batch)
    assert torch.equal(filtered.keep, ~batch.truncated)
    assert (filtered.advantages[batch.truncated] == 0).all()
    kept = ~batch.truncated
    torch.testing.assert_close(filtered.advantages[kept], everything.advantages[kept])


@pytest.mark.parametrize(
    ("algo", "form", "word"),
    [
        ({"preset": "grpo"}, "recompute", "step_start"),
        ({"preset": "ppo_ewma"}, "ewma", "average"),
        ({"preset": "decoupled_loglinear"}, "loglinear", ""),
        ({"preset": "grpo", "proximal": "snapshot"}, "snapshot", "snapshots"),
        ({"preset": "sft"}, "none", ""),
        ({"preset": "kimi"}, "none", ""),
    ],
)
def test_the_objective_says_which_proximal_policy_it_needs(algo, form, word):
    objective = build(**algo)
    assert objective.proximal_form == form
    assert objective.needs & {"step_start", "average", "snapshots"} == ({word} if word else set())
    assert objective.needs_proximal == (form != "none")


def test_snapshots_split_the_ratio_of_policy_and_behavior_exactly():
    inputs = loss_inputs(6)
    objective = build(preset="grpo", proximal="snapshot")
    report = objective.report(loss_of(objective, inputs)[1])
    total = (inputs.behavior_logp - inputs.logp.detach())[inputs.mask].mean()
    assert report["split/engine_kl"] + report["split/staleness_kl"] == pytest.approx(float(total))
    assert abs(report["split/staleness_kl"]) > 1e-3


def test_without_snapshots_current_and_older_tokens_are_told_apart():
    inputs = loss_inputs(6)
    newest = int(inputs.versions[inputs.mask].max())
    inputs = dataclasses.replace(inputs, extras={}, current_version=newest)
    objective = build(preset="grpo")
    report = objective.report(loss_of(objective, inputs)[1])
    difference = inputs.behavior_logp - inputs.logp.detach()
    current = inputs.mask & (inputs.versions == inputs.current_version)
    older = inputs.mask & ~current
    assert report["split/engine_kl_estimate"] == pytest.approx(float(difference[current].mean()))
    assert report["split/older_kl"] == pytest.approx(float(difference[older].mean()))


def test_metrics_are_stratified_by_token_lag():
    inputs = loss_inputs(6)
    lag = inputs.current_version - inputs.versions
    objective = build(preset="grpo")
    report = objective.report(loss_of(objective, inputs)[1])
    picked = inputs.mask & (lag == 1)
    log_rho = inputs.proximal_logp - inputs.behavior_logp
    assert report["lag_1/mismatch_kl_k1"] == pytest.approx(float(-log_rho[picked].mean()))
    weights = log_rho[picked].exp()
    ess = weights.mean() ** 2 / (weights**2).mean()
    assert report["lag_1/ess"] == pytest.approx(float(ess))
    assert sum(v for k, v in report.items() if k.endswith("token_fraction")) == pytest.approx(1.0)


def squared_error(inputs: LossInputs, *, scale: float = 1.0) -> LossOutputs:
    """A user's own loss."""
    return LossOutputs(scale * inputs.logp**2 * inputs.mask)


def test_a_users_loss_is_given_by_import_path():
    objective = build(loss={"name": f"{__name__}:squared_error", "scale": 2.0})
    inputs = dataclasses.replace(loss_inputs(1), proximal_logp=None, behavior_logp=None)
    expected = 2 * (inputs.logp**2).sum() / inputs.mask.sum()
    torch.testing.assert_close(loss_of(objective, inputs)[0], expected)
