"""Vectors named `data.*`: curation functions."""

from __future__ import annotations

import numpy as np

from asyncrl.extensions.curriculum import beta, difficulty, gdro
from asyncrl.extensions.published import subset


def posterior(i, p, _):
    a, b = beta.update(i["alpha"], i["beta"], i["successes"], i["failures"], p.get("decay", 1.0))
    mean, var = beta.moments(a, b)
    return {"alpha": a, "beta": b, "mean": mean, "var": var}


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


def gdro_prompt(i, p, _):
    scores = gdro.update_scores(np.array(i["score"]), np.array(i["bin_mean_loss"]), p["beta_ema"])
    omega = gdro.bin_weights(scores, p["eta"], p["C"])
    return {"score_new": scores, "omega": omega, "q": gdro.bin_probabilities(omega, p["gamma"])}


def gdro_rollouts(i, p, _):
    law = gdro.sqrt_law(np.array(i["bin_prob"]), np.array(i["variance"]), p["mean_rollouts"])
    return {"sqrt_law_continuous": law}


def dart(i, p, _):
    return {"keep": subset.high_entropy_steps(np.array(i["step_entropy"]), p["fraction"])}


ADAPTERS = {
    "data.beta_posterior": posterior,
    "data.insight_mutual_information": mutual_information,
    "data.vade_info_score": vade,
    "data.difficulty_targeted_probs": targeted,
    "data.attention_difficulty": attention,
    "data.d3s_max_variance_subset": max_variance,
    "data.gdro_prompt": gdro_prompt,
    "data.gdro_rollout_allocation": gdro_rollouts,
    "data.dart_high_entropy_steps": dart,
}
