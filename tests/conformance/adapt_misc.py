"""Vectors of aggregation, masks, proximal forms, KL, entropy, values, preferences and diagnostics."""

from __future__ import annotations

import torch

from asyncrl.algo import filters, kl
from asyncrl.algo.aggregate import aggregate
from asyncrl.algo.control.vcpo_lr import scaled_learning_rate
from asyncrl.algo.diagnostics.ess import derive, ess_metrics, sequence_ess
from asyncrl.algo.diagnostics.mismatch import divergence
from asyncrl.algo.diagnostics.token_lags import metrics_by_lag
from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss import preference
from asyncrl.algo.metrics import Metrics, values
from asyncrl.algo.next_token import next_token_scores
from asyncrl.algo.registry import parts, resolve
from asyncrl.extensions.critic.value import value_loss
from asyncrl.extensions.distillation import losses as distill
from asyncrl.extensions.published import shaping
from asyncrl.extensions.published.correction import m2po, masked, opsm, tv_mask
from asyncrl.extensions.published.proximal.ewma import beta_from_staleness, update_ewma
from asyncrl.extensions.published.proximal.interpolate import (
    interpolation_weight,
    linear_logp,
    loglinear_logp,
)
from tests.conformance.adapt_losses import loss_inputs
from tests.conformance.tensors import count_totals, keys, leaf, mask_of, tensor


def agg_all(i, p, _):
    mask, loss = mask_of(i["mask"]), tensor(i["token_loss"])
    totals = count_totals(mask, horizon=p.get("horizon", mask.shape[1]))
    modes = [name for name in parts()["aggregation"] if not name.startswith("prompt")]
    return {name: aggregate(resolve("aggregation", name), loss, mask, totals) for name in modes}


def agg_trl(i, p, _):
    mask, loss = mask_of(i["mask"]), tensor(i["token_loss"])
    own = count_totals(mask, horizon=p["max_completion_length"])
    given = count_totals(mask)
    given = type(given)(p.get("num_items_global", given.num_tokens), given.num_sequences)

    def run(name, totals):
        return aggregate(resolve("aggregation", name), loss, mask, totals)

    return {
        "grpo": run("trl_grpo", own),
        "bnpo": run("token_mean", own),
        "dr_grpo": run("trl_dr_grpo", own),
        "dapo": run("token_mean", given),
    }


def token_k1(i, p, _):
    inputs, bounds = loss_inputs(i), {"low": p["lower"], "high": p["upper"]}
    return {
        "mask_direct": masked.token_band(inputs, **bounds),
        "mask_verl": masked.token_band(inputs, inverted=True, **bounds),
    }


def trl_sequence_mask(i, p, _):
    inputs = loss_inputs(i)
    return {"weight": masked.sequence_product_or_drop(inputs.mismatch_log_ratio, inputs.mask, p["cap"])}


def run_opsm(i, p, _):
    keep, drift = opsm.opsm_keep(loss_inputs(i), p["delta"])
    return {"seq_kl": drift, "keep": keep}


def vaco(i, p, _):
    inputs = loss_inputs(i)
    drop, tv = tv_mask.tv_drop(inputs.mismatch_log_ratio, inputs.need("advantages"), inputs.mask, p["delta"])
    weight = tv_mask.tv_mask(inputs, delta=p["delta"], cap=p["clamp_upper"])
    return {"tv_seq": tv, "drop": drop, "weight": weight}


def run_m2po(i, p, _):
    inputs = loss_inputs(i)
    kept = m2po.m2po(inputs, threshold=p["threshold"])
    return {"mask": kept, "num_masked": inputs.mask.sum() - kept.sum()}


def loglinear(i, p, _):
    alpha = interpolation_weight(torch.tensor(i["versions"]), i["current_version"])
    logp, behavior = tensor(i["logp"]), tensor(i["behav_logp"])
    return {
        "alpha": alpha,
        "prox_loglinear": loglinear_logp(logp, behavior, alpha),
        "prox_linear": linear_logp(logp, behavior, alpha),
    }


def ewma_params(i, p, _):
    mean, total, history = torch.zeros(1, dtype=torch.float64), 0.0, []
    for theta in i["theta"]:
        total = update_ewma([mean], [tensor([theta])], p["beta"], total)
        history.append(mean.item())
    return {"ewma": history, "total_weight": total, "direct": history}


def ewma_beta(i, p, _):
    return {"beta": [beta_from_staleness(w) for w in i["staleness"]]}


def kl_estimators(i, p, _):
    reference = tensor(i["ref_logp"])
    found = {}
    for name, fn in (("k1", kl.k1), ("k2", kl.k2), ("k3", kl.k3), ("abs", kl.absolute)):
        logp = leaf(i["logp"])
        value = fn(logp, reference)
        found[name] = value.detach()
        found[f"grad_{name}"] = torch.autograd.grad(value.sum(), logp)[0]
    return found


def kl_reward(i, p, _):
    divergence_, mask = tensor(i["kl"]), mask_of(i["mask"])
    return {
        "token_rewards": kl.kl_in_reward(tensor(i["token_scores"]), divergence_, mask, p["beta"]),
    }


def kl_controller(i, p, _):
    coef = kl.adapt_kl_coef(i["kl_coef"], i["current_kl"], p["target"], p["horizon"], p["n_steps"])
    return {"kl_coef_new": coef}


def entropy(i, p, _):
    logits = leaf(i["logits"])
    value = next_token_scores(logits, torch.zeros(len(logits), dtype=torch.long), entropy=True).entropy
    assert value is not None
    return {"entropy": value.detach(), "grad_logits": torch.autograd.grad(value.sum(), logits)[0]}


def value_clip(i, p, _):
    values, mask = leaf(i["vpred"]), mask_of(i["mask"])
    token_loss, taken = value_loss(
        values, tensor(i["vold"]), tensor(i["returns"]), mask, p["clip"], factor=p.get("factor", 0.5)
    )
    loss = aggregate(resolve("aggregation", "token_mean"), token_loss, mask, count_totals(mask))
    grad = torch.autograd.grad(loss, values)[0]
    return {"loss": loss.detach(), "clip_frac": taken.double().sum() / mask.sum(), "grad": grad}


def overlong(i, p, _):
    options = (tensor(i["lengths"]), p["max_len"], p["buffer"], p.get("factor", 1.0))
    return {
        "penalty": shaping.overlong_penalty(*options, clamp=False),
        "penalty_clamped": shaping.overlong_penalty(*options),
    }


def dynamic_sampling(i, p, _):
    keep = filters.has_signal(tensor(i["rewards"]), keys(i["group"]))
    return {"keep_group": {str(g): bool(k) for g, k in zip(i["group"], keep, strict=True)}}


def dpo(i, p, _):
    chosen = leaf(i["pi_chosen"])
    z = preference.preference_logits(
        chosen, tensor(i["pi_rejected"]), tensor(i["ref_chosen"]), tensor(i["ref_rejected"])
    )
    sigmoid = preference.dpo_loss(z, p["beta"])
    return {
        "logits": z.detach(),
        "sigmoid": sigmoid.detach(),
        "ipo": preference.ipo_loss(z, p["beta"]).detach(),
        "grad_pi_chosen_sigmoid": torch.autograd.grad(sigmoid.sum(), chosen)[0],
    }


def opd_full(i, p, _):
    found = {}
    teacher = tensor(i["teacher_logits"])
    for direction, name in (("reverse", "reverse_kl"), ("forward", "forward_kl"), ("jsd", "jsd_half")):
        student = leaf(i["student_logits"])
        value = distill.full_kl(student, teacher, direction)
        found[name] = value.detach()
        found[f"grad_{direction}_logits"] = torch.autograd.grad(value.sum(), student)[0]
    return found


def ess_sequence(i, p, _):
    weights, ess, ratio = sequence_ess(tensor(i["seq_log_ratio"]))
    return {"weights": weights, "ess": ess, "ess_ratio": ratio}


def _values(metrics: Metrics) -> dict[str, float]:
    return derive(values(metrics))


def ess_token(i, p, _):
    inputs = loss_inputs(i)
    log_ratio, threshold = inputs.mismatch_log_ratio, p["threshold"]
    found = {"ess_current_verl": threshold, "ess_unclipped": None}
    return {
        name: _values(ess_metrics(log_ratio, inputs.mask, cap))["ess/token"] for name, cap in found.items()
    }


def vcpo_lr(i, p, _):
    return {"lr_eff": scaled_learning_rate(i["lr"], i["ess_ratio"], p["base_ess_ratio"], p["power"])}


def behaviour_kl(i, p, _):
    inputs = loss_inputs(i)
    found = divergence(inputs.need("proximal_logp"), inputs.need("behavior_logp"), inputs.mask)
    names = {
        "kl_k1": "kl_k1",
        "kl_k3": "kl_k3",
        "chi2_token": "chi2_token",
        "chi2_seq": "chi2_sequence",
        "ppl_behav": "perplexity_behavior",
        "ppl_prox": "perplexity_proximal",
        "log_ppl_diff_mean": "log_perplexity_difference",
    }
    return {k: found[f"mismatch/{m}"].total / found[f"mismatch/{m}"].count for k, m in names.items()}


def staleness(i, p, _):
    versions, mask = torch.tensor(i["token_versions"]), mask_of(i["mask"])
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    sampled = mask & (versions >= 0)
    inputs = LossInputs(logp=zeros, mask=sampled, versions=versions, current_version=i["current_version"])
    found = _values(metrics_by_lag(inputs, LossOutputs(zeros)))
    return {"mean": found["lag/mean"], "max": found["lag/max"]}


ADAPTERS = {
    "agg.all_modes_with_fully_masked_row": agg_all,
    "agg.trl_modes": agg_trl,
    "mask.verl_token_k1_inverted": token_k1,
    "mask.trl_sequence_mask": trl_sequence_mask,
    "mask.trl_opsm": run_opsm,
    "mask.vaco_tv_sequence": vaco,
    "mask.m2po": run_m2po,
    "prox.loglinear": loglinear,
    "ewma.params": ewma_params,
    "ewma.beta_from_staleness": ewma_beta,
    "kl.estimators": kl_estimators,
    "kl.in_reward_verl": kl_reward,
    "kl.adaptive_controller": kl_controller,
    "entropy.from_logits": entropy,
    "loss.value_clip": value_clip,
    "loss.dpo": dpo,
    "loss.opd_full_vocab": opd_full,
    "reward.overlong_soft": overlong,
    "filter.dynamic_sampling": dynamic_sampling,
    "diag.ess_sequence": ess_sequence,
    "diag.ess_token": ess_token,
    "diag.vcpo_lr": vcpo_lr,
    "diag.behaviour_vs_current_kl": behaviour_kl,
    "diag.staleness_histogram": staleness,
}
