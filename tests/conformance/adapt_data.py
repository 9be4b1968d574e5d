"""Vectors named `data.*`: curation functions."""

from __future__ import annotations

import numpy as np

from asyncrl.algo.curation import beta, difficulty, gdro, partial, subset


def posterior(i, p, _):
    a, b = beta.update(i["alpha"], i["beta"], i["successes"], i["failures"], p.get("decay", 1.0))
    mean, var = beta.moments(a, b)
    return {"alpha": a, "beta": b, "mean": mean, "var": var}


def variance_reduction(i, p, _):
    counts = p["M"] if isinstance(p["M"], list) else [p["M"]]
    return {
        "dvar": [beta.variance_reduction(i["alpha"], i["beta"], m) for m in counts],
        "closed_form_m1": beta.variance_reduction_one(i["alpha"], i["beta"]),
    }


def mutual_information(i, p, _):
    scale = 1 / np.log(2) if p.get("unit") == "bits" else 1.0
    return {"mi": [beta.mutual_information(a, b, p.get("rollouts", 1)) * scale for a, b in i["pairs"]]}


def vade(i, p, _):
    return {"score": beta.information_score(np.array(i["p"]))}


def targeted(i, p, _):
    return {"prob": difficulty.targeted_probabilities(np.array(i["pred"]), p["alpha"], p["tau"])}


def attention(i, p, _):
    weights = difficulty.attention_weights(np.array(i["query"]), np.array(i["ref_keys"]), p.get("tau", 1.0))
    base = float(weights @ np.array(i["ref_difficulty"]))
    platt = difficulty.calibrate(base, p.get("platt_scale", 1.0), p.get("platt_bias", 0.0))
    return {"weights": weights, "base": base, "platt": platt}


def max_variance(i, p, _):
    chosen = subset.max_variance_subset(np.array(i["adv"]), p["N"])
    variance = float(np.array(i["adv"])[chosen].var())
    return {"indices": chosen, "variance": variance, "greedy_ends_indices": chosen}


def token_topk(i, p, _):
    scores = subset.token_scores(np.array(i["adv"]), np.array(i["entropy"]))
    return {"score": scores, "keep": subset.top_indices(scores, p["K"])}


def xrpo(i, p, _):
    return {"eta": subset.novelty(np.array(i["len_norm_logp"]))}


def gdro_prompt(i, p, _):
    scores = gdro.update_scores(np.array(i["score"]), np.array(i["bin_mean_loss"]), p["beta_ema"])
    omega = gdro.bin_weights(scores, p["eta"], p["C"])
    return {"score_new": scores, "omega": omega, "q": gdro.bin_probabilities(omega, p["gamma"])}


def gdro_rollouts(i, p, _):
    exact, objective = gdro.allocate_rollouts(i["bin_prob"], i["variance"], i["arms"], p["mean_rollouts"])
    law = gdro.sqrt_law(np.array(i["bin_prob"]), np.array(i["variance"]), p["mean_rollouts"])
    return {"exact_discrete": exact, "objective": objective, "sqrt_law_continuous": law}


def april(i, p, _):
    submitted = i["required_tokens"][: p.get("oversample")]
    cut = partial.april(submitted, p["target"])
    return {"stop_time": cut.tick, "completed": cut.completed, "partial": cut.partial}


def c3po(i, p, _):
    cut = partial.token_budget(i["required_tokens"], p["budget"])
    return {
        "completed": cut.completed,
        "partial": cut.partial,
        "tokens": cut.tokens(i["required_tokens"]),
    }


def dart(i, p, _):
    return {"keep": subset.high_entropy_steps(np.array(i["step_entropy"]), p["fraction"])}


ADAPTERS = {
    "data.beta_posterior": posterior,
    "data.insight_variance_reduction": variance_reduction,
    "data.insight_mutual_information": mutual_information,
    "data.vade_info_score": vade,
    "data.difficulty_targeted_probs": targeted,
    "data.attention_difficulty": attention,
    "data.d3s_max_variance_subset": max_variance,
    "data.d3s_token_topk": token_topk,
    "data.xrpo_novelty": xrpo,
    "data.gdro_prompt": gdro_prompt,
    "data.gdro_rollout_allocation": gdro_rollouts,
    "data.april_step": april,
    "data.c3po_pp_budget": c3po,
    "data.dart_high_entropy_steps": dart,
}
