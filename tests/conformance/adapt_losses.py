"""Vectors named `loss.*` on the token fixture: loss, corrections, aggregation, gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from asyncrl.algo.aggregate import aggregate
from asyncrl.algo.correction import truncated
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.loss import ppo
from asyncrl.algo.registry import resolve
from asyncrl.extensions.distillation import losses as distill
from asyncrl.extensions.published.correction import kpop, masked, sequence_kl
from asyncrl.extensions.published.loss import (
    aspo,
    asympo,
    atpo,
    cispo,
    covariance,
    decoupled,
    dppo,
    dro,
    gmpo,
    gspo,
    importance,
    kimi,
    prime_rl,
    sapo,
    sat,
    sft,
    topr,
    two_sided,
    vapo,
    vespo,
)
from asyncrl.extensions.published.proximal.interpolate import loglinear
from tests.conformance.tensors import count_totals, leaf, mask_of, tensor

FIELDS = {
    "old_logp": "proximal_logp",
    "prox_logp": "proximal_logp",
    "behav_logp": "behavior_logp",
    "sampler_logp": "behavior_logp",
    "ref_logp": "reference_logp",
    "teacher_logp": "teacher_logp",
    "adv": "advantages",
    "score": "scores",
    "clip_scale": "clip_scale",
}
PPO = {"eps_low": "eps_low", "eps_high": "eps_high", "c": "dual_clip", "log_ratio_clamp": "log_ratio_clamp"}
CLIP = {"eps_low": "eps_low", "eps_high": "eps_high"}


def loss_inputs(i, logp=None) -> LossInputs:
    """The fixture as `LossInputs`, with `logp` as the leaf that collects the gradient."""
    given: dict[str, Any] = {field: tensor(i[name]) for name, field in FIELDS.items() if name in i}
    if "adv" in i and given["advantages"].dim() == 1:
        given["advantages"] = given["advantages"].unsqueeze(-1).expand(mask_of(i["mask"]).shape)
    if logp is None:
        logp = tensor(i["logp"]) if "logp" in i else torch.zeros_like(tensor(i["mask"]))
    whole = {name: torch.tensor(i[name]) for name in ("versions", "turn_ids") if name in i}
    return LossInputs.of(
        {
            "logp": logp,
            "mask": mask_of(i["mask"]),
            "current_version": i.get("current_version", 0),
            **given,
            **whole,
        }
    )


def select(p, names):
    """The params a function takes, under its own names."""
    return {ours: p[theirs] for theirs, ours in names.items() if theirs in p}


def report(logp, inputs, token_loss, p, expected):
    """Token loss, every aggregation and the gradient under the vector's aggregation."""
    totals = count_totals(inputs.mask, horizon=p.get("horizon", inputs.mask.shape[1]))
    found = {"token_loss": token_loss.detach()}
    modes = set(expected.get("agg", {})) | {expected.get("grad_mode", "token_mean")}
    scalars = {m: aggregate(resolve("aggregation", m), token_loss, inputs.mask, totals) for m in modes}
    found["agg"] = {name: value.item() for name, value in scalars.items()}
    found["sum"] = token_loss.detach().sum()
    if "grad_logp" in expected:
        found["grad_logp"] = torch.autograd.grad(scalars[expected["grad_mode"]], logp)[0]
    return found


def plain(fn, names, outputs=()):
    """A loss without corrections; `outputs` maps expected names to `LossOutputs.tensors`."""

    def run(i, p, expected):
        logp = leaf(i["logp"])
        inputs = loss_inputs(i, logp)
        out = fn(inputs, **select(p, names))
        found = report(logp, inputs, out.token_loss, p, expected)
        found |= {name: out.tensors[ours] for name, ours in dict(outputs).items()}
        found |= metrics(inputs, out)
        return found

    return run


def metrics(inputs, out):
    """Scalar metrics under the vectors' names."""
    names = {
        "clip_frac": "clip_fraction",
        "dual_clip_frac": "clip_fraction/dual",
        "approx_kl_k1_old_minus_new": "kl/proximal_to_current",
        "gate_rate": "sat/gate_rate",
    }
    return {k: out.metrics[m].total / out.metrics[m].count for k, m in names.items() if m in out.metrics}


def corrected(correct, names):
    """PPO clip multiplied by a correction weight."""

    def run(i, p, expected):
        logp = leaf(i["logp"])
        inputs = loss_inputs(i, logp)
        weight = correct(inputs, **select(p, names))
        token_loss = ppo.ppo_clip(inputs, **select(p, PPO)).token_loss * weight
        return report(logp, inputs, token_loss, p, expected) | {"weight": weight}

    return run


def batch_normalised(inputs, **params):
    return truncated.token_tis(inputs, batch_normalize=True, **params)


def run_decoupled(i, p, expected):
    names = {**PPO, "behav_weight_cap": "behavior_weight_cap", "action": "cap_action"}
    return plain(decoupled.decoupled_ppo, names, {"weight": "weight"})(i, p, expected)


def run_ewma(i, p, expected):
    p = {"eps_low": p["eps"], "eps_high": p["eps"], **p} if "eps" in p else p
    return plain(decoupled.behavior_clip, CLIP)(i, p, expected)


def identity_replay(i, p, _):
    inputs = loss_inputs(i)
    eps = {"eps_low": p["eps"], "eps_high": p["eps"]}
    a = decoupled.decoupled_ppo(inputs, **eps).token_loss
    b = decoupled.behavior_clip(inputs, **eps).token_loss
    return {"max_abs_diff": (a - b).abs().max().detach()}


def decoupled_loglinear(i, p, expected):
    logp = leaf(i["logp"])
    inputs = loss_inputs(i, logp)
    inputs = dataclasses.replace(inputs, proximal_logp=loglinear(inputs))
    out = decoupled.decoupled_ppo(inputs, **select(p, PPO))
    return report(logp, inputs, out.token_loss, p, expected)


def run_aspo(i, p, expected):
    logp = leaf(i["logp"])
    inputs = loss_inputs(i, logp)
    names = ("eps_low_entropy", "eps_high_entropy", "c_pos", "c_neg")
    out = aspo.aspo_loss(inputs, mask_of(i["low_entropy_mask"]), **{k: p[k] for k in names if k in p})
    return report(logp, inputs, out.token_loss, p, expected)


def run_gmpo(i, p, expected):
    logp = leaf(i["logp"])
    inputs = loss_inputs(i, logp)
    out = gmpo.gmpo(inputs, **select(p, CLIP))
    found = report(logp, inputs, out.token_loss, p, expected)
    mode = resolve("aggregation", "seq_mean_token_mean")
    loss = aggregate(mode, out.token_loss, inputs.mask, count_totals(inputs.mask))
    return found | {"seq_ratio": out.tensors["sequence_ratio"], "loss": loss.detach()}


def same(*names):
    return {name: name for name in names}


def run_kpop(i, p, _):
    inputs = loss_inputs(i)
    divergence = kpop.two_sided_binary_kl(inputs.proximal_logp, inputs.behavior_logp) * inputs.mask
    return {"divergence": divergence, "weight": kpop.kpop(inputs, threshold=p["threshold"])}


def run_sequence_kl(i, p, _):
    inputs = loss_inputs(i)
    form = {"estimator": p["estimator"], "agg": p["agg"]}
    found = sequence_kl.sequence_divergence(inputs.mismatch_log_ratio, inputs.mask, **form)
    return {"divergence": found, "weight": sequence_kl.sequence_kl(inputs, upper=p["upper"], **form)}


ADAPTERS = {
    "loss.ppo_clip": plain(ppo.ppo_clip, PPO),
    "loss.ppo_dual_clip": plain(ppo.ppo_clip, PPO),
    "loss.dapo_clip_higher": plain(ppo.dapo_clip, {**CLIP, "c": "dual_clip"}),
    "loss.ppo_extreme_logratio": plain(ppo.ppo_clip, PPO),
    "loss.two_sided_clip": plain(two_sided.two_sided_clip, {**CLIP, "delta": "delta"}),
    "loss.gspo": plain(gspo.gspo, CLIP, {"seq_ratio": "sequence_ratio"}),
    "loss.cispo": plain(cispo.cispo, CLIP),
    "loss.cispo_trl_absolute_cap": plain(cispo.cispo_absolute, same("cap")),
    "loss.cispo_upper_only": plain(cispo.cispo_upper, same("eps_high")),
    "loss.sapo": plain(sapo.sapo, same("tau_pos", "tau_neg")),
    "loss.dppo_tv": plain(dppo.dppo_tv, same("tv_low", "tv_high", "ratio_cap")),
    "loss.dppo_binary_kl": plain(
        dppo.dppo_kl, same("kl_low", "kl_high", "ratio_cap"), {"binary_kl": "binary_kl"}
    ),
    "loss.dro": plain(dro.dro, same("beta")),
    "loss.gmpo_seq": run_gmpo,
    "loss.vespo": plain(vespo.vespo, same("k_pos", "lam_pos", "k_neg", "lam_neg"), {"phi": "phi"}),
    "loss.decoupled_ppo": run_decoupled,
    "loss.decoupled_ppo.identity_replay": identity_replay,
    "loss.decoupled_loglinear": decoupled_loglinear,
    "loss.ppo_ewma": run_ewma,
    "loss.isw.tis_token": corrected(truncated.token_tis, same("cap")),
    "loss.isw.tis_token_two_sided": corrected(truncated.token_tis, same("cap", "low")),
    "loss.isw.tis_token_batch_normalised": corrected(batch_normalised, same("cap")),
    "loss.isw.tis_sequence": corrected(truncated.sequence_tis, same("cap")),
    "loss.isw.icepop": corrected(masked.icepop, same("low", "high")),
    "loss.isw.mis_sequence_product": corrected(masked.mis_product, same("low", "high")),
    "loss.isw.mis_sequence_geometric": corrected(masked.mis_geometric, same("low", "high")),
    "loss.isw.seq_mask_tis_nemo": corrected(masked.sequence_mask_tis, {"geo_low": "low", "geo_high": "high"}),
    "loss.sat": plain(
        sat.sat,
        {**CLIP, "quantile": "quantile"},
        {"q": "quantile", "lower": "lower", "upper": "upper"},
    ),
    "loss.prime_rl_default": plain(
        prime_rl.prime_rl,
        {"dppo_mask_low": "mask_low", "dppo_mask_high": "mask_high", **same("adv_tau", "kl_tau")},
        {"keep": "keep"},
    ),
    "loss.prime_rl_ipo": plain(
        prime_rl.ipo_masked, {"ipo_threshold": "threshold", **same("adv_tau", "kl_tau")}, {"keep": "keep"}
    ),
    "loss.prime_rl_ref_kl": plain(prime_rl.ref_kl, same("drop", "kl_tau"), {"keep": "keep"}),
    "loss.topr_token": plain(topr.topr_token, {}, {"weight": "weight"}),
    "loss.topr_trajectory": plain(topr.topr_trajectory, {}, {"weight": "sequence_weight"}),
    "loss.aipo": plain(importance.aipo, {"rho": "cap"}, {"weight": "weight"}),
    "loss.tis_reinforce_0_1": plain(importance.reinforce_tis, same("low", "high")),
    "loss.importance_zero_outside": plain(importance.importance_zero, CLIP, {"weight": "weight"}),
    "loss.aspo": run_aspo,
    "loss.kimi15": plain(kimi.kimi, same("tau")),
    "loss.opd_sampled_reverse_kl": plain(distill.opd_sampled, {}),
    "loss.sft": plain(sft.sft, {}),
    "loss.atpo": plain(atpo.atpo, CLIP, {"turn_ratio": "turn_ratio"}),
    "loss.kl_cov": plain(covariance.kl_cov, same("share", "coef"), {"chosen": "chosen"}),
    "loss.clip_cov": plain(
        covariance.clip_cov, {**CLIP, **same("share", "cov_low", "cov_high")}, {"chosen": "chosen"}
    ),
    "loss.asympo": plain(asympo.asympo, {}, {"response_nll": "response_nll"}),
    "loss.vapo": plain(vapo.vapo, {}),
    "mask.kpop": run_kpop,
    "mask.sequence_kl": run_sequence_kl,
}
