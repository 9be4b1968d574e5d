"""Vectors named `adv.*`: build the arguments, call the library, name the outputs."""

from __future__ import annotations

import torch

from asyncrl.algo.advantage import grpo
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.normalize import standardise, token_moments, tokens
from asyncrl.algo.ops import to_tokens, whiten
from asyncrl.extensions.published import tracked_baselines
from asyncrl.extensions.published.advantage import (
    gae,
    gae_turn,
    gdpo,
    maxrl,
    mc_grpo,
    mt_grpo,
    opo,
    optimal_token_baseline,
    passk,
    reinforce_pp,
    remax,
    rloo,
    vcpo,
    vtrace,
)
from tests.conformance.tensors import keys, mask_of, singleton, tensor


def grouped(i, p, _):
    options = {"ddof": p.get("ddof", 1), "eps": p.get("eps", 1e-6), "singleton": singleton(p)}
    return {"adv": grpo.grpo_scores(tensor(i["rewards"]), keys(i["group"]), **options)}


def leave_one_out_both(i, p, _):
    scores = grpo.grpo_scores(
        tensor(i["rewards"]),
        keys(i["group"]),
        ddof=p.get("ddof", 1),
        eps=p.get("eps", 1e-6),
        mean="leave_one_out",
        std="leave_one_out",
    )
    return {"adv": scores}


def leave_one_out_mean(i, p, _):
    scores = grpo.grpo_scores(
        tensor(i["rewards"]),
        keys(i["group"]),
        ddof=p.get("ddof", 1),
        eps=p.get("eps", 1e-4),
        mean="leave_one_out",
        singleton=singleton(p),
    )
    return {"adv": scores}


def centred(i, p, _):
    scores = grpo.grpo_scores(tensor(i["rewards"]), keys(i["group"]), std="none", singleton=singleton(p))
    return {"adv": scores}


def run_rloo(i, p, _):
    return {"adv": rloo.rloo_scores(tensor(i["rewards"]), keys(i["group"]), singleton(p))}


def run_opo(i, p, _):
    rewards, group, lengths = tensor(i["rewards"]), keys(i["group"]), tensor(i["lengths"])
    return {"adv": opo.opo_scores(rewards, group, lengths, singleton(p))}


def run_passk(i, p, _):
    options = {"std": p.get("std", True), "eps": p.get("eps", 1e-6), "ddof": p.get("ddof", 1)}
    return {"adv": passk.passk_scores(tensor(i["rewards"]), keys(i["group"]), **options)}


def run_maxrl(i, p, _):
    return {"adv": maxrl.maxrl_scores(tensor(i["rewards"]), keys(i["group"]), p.get("eps", 0.0))}


def run_reinforce_pp(reset):
    def run(i, p, _):
        mask = mask_of(i["mask"])
        returns = reinforce_pp.masked_returns(tensor(i["token_rewards"]), mask, p.get("gamma", 1.0), reset)
        return {"returns": returns, "adv": whiten(returns, mask, p.get("eps", 1e-8))}

    return run


def run_reinforce_pp_baseline(i, p, _):
    rewards, mask = tensor(i["token_rewards"]).sum(-1), mask_of(i["mask"])
    return {"adv": reinforce_pp.baseline_whitened(rewards, keys(i["group"]), mask, p.get("eps", 1e-8))}


def run_remax(i, p, _):
    adv, returns = remax.remax_advantages(
        tensor(i["token_rewards"]), mask_of(i["mask"]), tensor(i["greedy_reward"])
    )
    return {"adv": adv, "returns": returns}


def gae_skip(i, p, _):
    values, mask = tensor(i["values"]), mask_of(i["mask"])
    adv = gae.gae_tokens(tensor(i["token_rewards"]), values, mask, p["gamma"], p["lam"]) * mask
    return {"adv": adv, "returns": (adv + values) * mask, "adv_whitened": whiten(adv, mask)}


def gae_no_skip(i, p, _):
    values = tensor(i["values"])
    everywhere = torch.ones_like(values, dtype=torch.bool)
    adv = gae.gae_tokens(tensor(i["token_rewards"]), values, everywhere, p["gamma"], p["lam"])
    return {"adv": adv, "returns": adv + values}


def gae_by_turn(i, p, _):
    values = tensor(i["values"])
    bootstrap = values[:, -1] * tensor(i["seq_no_eos"])
    adv, returns = gae_turn.turn_gae(
        tensor(i["token_rewards"]), values, torch.tensor(i["turn_ids"]), p["gamma"], p["lam"], bootstrap
    )
    return {"adv": adv, "returns": returns}


def adaptive_lambda(i, p, _):
    return {"lam": gae.length_adaptive_lambda(tensor(i["lengths"]), p["alpha"])}


def run_mc_grpo(i, p, _):
    found = mc_grpo.median_centred(tensor(i["rewards_Gplus1"]), p.get("eps", 1e-3), mad_zero="paper")
    kept = torch.arange(len(found.advantages)) != found.pivot
    return {
        "median": found.median,
        "mad": found.mad,
        "adv": found.advantages,
        "pivot_index_first_match": found.pivot,
        "adv_kept": found.advantages[kept],
        "code_multiplier": found.multiplier,
        "adv_times_multiplier": found.advantages * found.multiplier,
    }


def _gdpo_combined(i, eps, ddof):
    scores = gdpo.normalise_components(tensor(i["rewards"]), keys(i["group"]), eps, ddof)
    return scores, gdpo.combine_components(scores, tensor(i["weights"]))


def gdpo_sample(i, p, _):
    ddof = p.get("ddof", 1)
    scores, combined = _gdpo_combined(i, p.get("eps_group", 1e-4), ddof)
    adv = standardise(combined, p.get("eps_batch", 1e-4), ddof)
    return {"per_reward_norm": scores, "combined": combined, "adv": adv}


def gdpo_token(i, p, _):
    scores, combined = _gdpo_combined(i, p.get("eps_group", 1e-6), p.get("ddof", 1))
    mask = mask_of(i["mask"])
    return {"per_reward_norm": scores, "combined": combined, "adv": whiten(to_tokens(combined, mask), mask)}


def run_mt_grpo(i, p, _):
    turn, outcome = tensor(i["turn_reward"]), tensor(i["outcome_reward"])
    group = keys(i["group"]) if "group" in i else torch.zeros(len(turn), dtype=torch.long)
    a_turn, a_outcome, a_combined = (
        grpo.grpo_scores(r, group, p.get("ddof", 1), p.get("eps", 1e-4))
        for r in (turn, outcome, turn + outcome)
    )
    first = torch.tensor(i["first_result_pos"])
    adv = mt_grpo.turn_credit(a_turn, a_outcome, a_combined, mask_of(i["mask"]), first, p.get("coef", 1.0))
    return {"a_turn": a_turn, "a_outcome": a_outcome, "a_combined": a_combined, "adv": adv}


def run_vtrace(i, p, _):
    rewards = tensor([i["rewards"]])
    vs, adv = vtrace.vtrace_targets(
        rewards,
        tensor([i["values"]]),
        tensor([i["discounts"]]),
        tensor([i["rhos"]]),
        torch.ones_like(rewards, dtype=torch.bool),
        tensor([i["bootstrap"]]),
        **{k: p[k] for k in ("lam", "clip_rho", "clip_c", "clip_pg_rho") if k in p},
    )
    return {"vs": vs[0], "pg_adv": adv[0]}


def run_tir_otb(i, p, _):
    mask = mask_of(i["mask"])
    rewards = tensor(i["token_rewards"]) * mask
    batch = AdvantageBatch(
        rewards=rewards.sum(-1), group=keys(i["group"]), mask=mask,
        # A turn for each column, so that rewards stay where they are.
        turn_ids=torch.arange(mask.shape[1]).expand(mask.shape), turn_rewards=rewards.tolist(),
        old_logp=tensor(i["old_logp"]), sum_pi_squared=tensor(i["sum_pi_squared"]),
    )  # fmt: skip
    found = optimal_token_baseline.tir_optimal_token_baseline(batch, **p)
    return {"adv": found.advantages, "returns": found.returns}


def run_otb(i, p, _):
    rho = tensor(i["rollout_is_weights"]) if "rollout_is_weights" in i else None
    adv, returns = optimal_token_baseline.otb_advantages(
        tensor(i["token_rewards"]),
        mask_of(i["mask"]),
        keys(i["group"]),
        tensor(i["old_logp"]),
        tensor(i["sum_pi_squared"]),
        rho,
        p.get("eps", 1e-8),
        p.get("handle_zero_tail", True),
    )
    return {"adv": adv, "returns": returns}


def opob_paper(i, p, _):
    rewards = tensor(i["rewards"])
    weights = vcpo.opob_weights(tensor(i["score_grad_norm"]), tensor(i["seq_is_weight"]))
    baseline = vcpo.opob_baseline(rewards, weights)
    return {"baseline": baseline, "adv": rewards - baseline}


def opob_code(i, p, _):
    rewards, norm, eps = tensor(i["rewards"]), tensor(i["grad_norm_unscaled"]), p.get("eps", 1e-8)

    def baseline(agg="mean", **override):
        o = {**p, **override}
        ratio = tensor(i["seq_is_clipped"] if o.get("use_clipped") else i["seq_is"])
        lengths = tensor(i["response_length"]) if o.get("normalize_by_length") else None
        return vcpo.opob_baseline(
            rewards,
            vcpo.opob_weights(norm, ratio if o.get("use_is_weights", True) else None, lengths),
            agg,
            eps,
        )

    return {
        "mean": baseline(),
        "median": baseline("median"),
        "winsorized_mean": baseline("winsorized_mean"),
        "mean_no_is": baseline(use_is_weights=False),
        "mean_clipped_is": baseline(use_clipped=True),
        "mean_len_norm": baseline(normalize_by_length=True),
    }


def opob_combined(i, p, _):
    rewards = tensor(i["rewards"])
    adv = rewards - i["baseline"]
    one_group = torch.zeros(len(rewards), dtype=torch.long)
    if p.get("norm_by_std", True):
        adv = vcpo.scale_by_std(adv, rewards, one_group, p.get("ddof", 0))
    return {"adv": adv}


def batch_norm(i, p, _):
    adv, mask, ddof = tensor(i["adv"]), mask_of(i["mask"]), int(p.get("unbiased", True))
    mean, std = token_moments(adv, mask, ddof)
    return {"mean": mean, "std": std, "adv": tokens(adv, mask, eps=p.get("eps", 1e-5), ddof=ddof)}


def run_spo(i, p, _):
    alpha, beta, reward = tensor(i["alpha"]), tensor(i["beta"]), tensor(i["reward"])
    baseline = tracked_baselines.beta_mean(alpha, beta)
    rho = tracked_baselines.forgetting(
        tensor(i["mean_abs_logp_change"]),
        p.get("D_half", 0.06),
        p.get("rho_min", 0.875),
        p.get("rho_max", 0.96),
    )
    alpha_new, beta_new = tracked_baselines.update_beta(alpha, beta, reward, rho)
    return {
        "baseline": baseline,
        "adv_raw": reward - baseline,
        "adv_batch_normalised": standardise(reward - baseline, p.get("eps", 1e-8), p.get("ddof", 1)),
        "rho": rho,
        "alpha_new": alpha_new,
        "beta_new": beta_new,
    }


def run_spo_init(i, p, _):
    rho_min = p.get("rho_min", 0.875)
    alpha, beta = tracked_baselines.initial_beta(tensor(i["offline_binary_scores"]), rho_min)
    return {"N_init": tracked_baselines.initial_worth(rho_min), "alpha": alpha, "beta": beta}


ADAPTERS = {
    "adv.grpo": grouped,
    "adv.grpo.nemo_loo_mean_loo_std": leave_one_out_both,
    "adv.grpo.loo_mean_group_std": leave_one_out_mean,
    "adv.dr_grpo": centred,
    "adv.rloo": run_rloo,
    "adv.opo_length_weighted_baseline": run_opo,
    "adv.grpo_passk": run_passk,
    "adv.maxrl": run_maxrl,
    "adv.reinforce_pp.carry": run_reinforce_pp(False),
    "adv.reinforce_pp.reset_legacy": run_reinforce_pp(True),
    "adv.reinforce_pp_baseline": run_reinforce_pp_baseline,
    "adv.remax": run_remax,
    "adv.gae.skip_masked": gae_skip,
    "adv.gae.no_skip": gae_no_skip,
    "adv.gae.turn_level": gae_by_turn,
    "adv.gae.length_adaptive_lambda": adaptive_lambda,
    "adv.mc_grpo": run_mc_grpo,
    "adv.gdpo.sample_level": gdpo_sample,
    "adv.gdpo.token_level": gdpo_token,
    "adv.mt_grpo": run_mt_grpo,
    "adv.vtrace": run_vtrace,
    "adv.optimal_token_baseline": run_otb,
    "adv.tir_optimal_token_baseline": run_tir_otb,
    "adv.vcpo_opob.paper": opob_paper,
    "adv.vcpo_opob.code_agg": opob_code,
    "adv.vcpo_opob.combined": opob_combined,
    "adv.batch_norm_tokens_areal": batch_norm,
    "adv.spo_single_rollout": run_spo,
    "adv.spo_init": run_spo_init,
}
