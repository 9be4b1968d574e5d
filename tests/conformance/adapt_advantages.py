"""Vectors named `adv.*`: build the arguments, call the library, name the outputs."""

from __future__ import annotations

import torch

from asyncrl.algo.advantage import (
    archer,
    gae,
    gae_turn,
    gdpo,
    gigpo,
    grpo,
    hgpo,
    igpo,
    igpo_released,
    maxrl,
    mc_grpo,
    mt_grpo,
    multi_agent,
    opo,
    optimal_token_baseline,
    passk,
    reinforce_pp,
    remax,
    rloo,
    spo,
    steps,
    ui_s1,
    vcpo,
    vtrace,
)
from asyncrl.algo.normalize import standardise, token_moments, tokens
from asyncrl.algo.ops import to_tokens, whiten
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


def gae_areal(i, p, _):
    values = tensor(i["values"])
    adv = gae.gae_last_column_bootstrap(
        tensor(i["token_rewards"]),
        values,
        mask_of(i["mask"]),
        tensor(i["seq_no_eos"]),
        p["gamma"],
        p["lam"],
    )
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


def _episode(i, p, std, per_trajectory=False):
    return steps.episode_advantage(
        tensor(i["episode_reward_per_row"]),
        keys(i["prompt"]),
        keys(i["traj"]),
        std,
        per_trajectory,
        p.get("ddof", 1),
        p.get("eps", 1e-6),
    )


def run_gigpo(std):
    def run(i, p, _):
        returns = steps.step_returns(tensor(i["step_reward"]), keys(i["traj"]), p.get("gamma", 0.95))
        anchors = gigpo.anchor_groups(keys(i["prompt"]), i["anchor_obs"])
        step = steps.centred_in_groups(returns, anchors, std, p.get("ddof", 1), p.get("eps", 1e-6))
        episode = _episode(i, p, std)
        adv = episode + p.get("w", 1.0) * step
        return {"step_return": returns, "a_episode": episode, "a_step": step, "adv": adv}

    return run


def gigpo_episode(i, p, _):
    return {"a_episode": _episode(i, p, bool(p.get("std", False)), per_trajectory=True)}


def run_hgpo(i, p, _):
    levels = hgpo.history_levels(
        tensor(i["step_return"]),
        keys(i["prompt"]),
        keys(i["traj"]),
        i["anchor_obs"],
        p.get("history_length", 2),
        p.get("mode", "mean_std_norm") == "mean_std_norm",
        p.get("ddof", 0),
        p.get("eps", 1e-6),
    )
    return {"adv": hgpo.combine_levels(levels, 1, p.get("alpha", 1.0))}


def run_multi_agent(i, p, _):
    scores, prompt = tensor(i["score"]), keys(i["prompt"])
    options = (p.get("ddof", 1), p.get("eps", 1e-6))
    return {
        "adv_agentwise": multi_agent.agent_wise(scores, prompt, keys(i["agent"]), *options),
        "adv_trajectory_mean": multi_agent.trajectory_wise(scores, prompt, keys(i["traj"]), *options),
    }


def run_ui_s1(i, p, _):
    std = p.get("mode", "mean_norm") == "mean_std_norm"
    returns = ui_s1.matched_returns(
        tensor(i["step_reward"]), keys(i["traj"]), mask_of(i["extract_match"]), p.get("gamma", 0.5)
    )
    groups = ui_s1.index_groups(keys(i["prompt"]), torch.tensor(i["step_index"]))
    step = steps.centred_in_groups(returns, groups, std, p.get("ddof", 1), p.get("eps", 1e-6))
    episode = _episode(i, p, std)
    adv = p.get("w_episode", 1.0) * episode + p.get("w_step", 1.0) * step
    return {"step_return": returns, "a_episode": episode, "a_step": step, "adv": adv}


def igpo_gain(i, p, _):
    probability = torch.stack(
        [igpo.answer_probability(tensor(row)) for row in i["gt_token_logp_per_context"]]
    )
    return {"p": probability, "turn_reward": igpo.information_gain(probability)}


def igpo_discounted(i, p, _):
    rows = [(r, k) for r, turns in enumerate(i["turn_rewards"]) for k in range(len(turns))]
    rewards = tensor([i["turn_rewards"][r][k] for r, k in rows])
    traj = torch.tensor([r for r, _ in rows])
    one_group = torch.zeros_like(traj)
    z, adv = igpo.standardised_turn_returns(
        rewards, traj, one_group, p["gamma"], p.get("eps", 1e-6), p.get("ddof", 1)
    )
    count = range(len(i["turn_rewards"]))
    return {
        "norm": [z[traj == r].tolist() for r in count],
        "adv_per_turn": [adv[traj == r].tolist() for r in count],
    }


def igpo_grpo(i, p, _):
    returns, adv = igpo_released.positionwise(
        tensor(i["token_rewards"]), mask_of(i["mask"]), keys(i["group"]), p.get("gamma", 1.0)
    )
    return {"returns": returns, "adv": adv}


def igpo_grpo_discounted(i, p, _):
    returns, adv = igpo_released.first_token_statistics(
        tensor(i["token_rewards"]),
        mask_of(i["mask"]),
        keys(i["group"]),
        p.get("gamma", 0.5),
        p.get("eps", 1e-6),
        p.get("ddof", 1),
    )
    return {"returns": returns, "adv": adv}


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


def run_archer(i, p, _):
    target = archer.utterance_target(
        tensor(i["reward"]), tensor(i["v_next_target"]), tensor(i["done"]), p["gamma"]
    )
    return {"q_target": target, "adv_utterance": archer.utterance_advantage(tensor(i["q"]), tensor(i["v"]))}


def batch_norm(i, p, _):
    adv, mask, ddof = tensor(i["adv"]), mask_of(i["mask"]), int(p.get("unbiased", True))
    mean, std = token_moments(adv, mask, ddof)
    return {"mean": mean, "std": std, "adv": tokens(adv, mask, eps=p.get("eps", 1e-5), ddof=ddof)}


def run_spo(i, p, _):
    alpha, beta, reward = tensor(i["alpha"]), tensor(i["beta"]), tensor(i["reward"])
    baseline = spo.beta_mean(alpha, beta)
    rho = spo.forgetting(
        tensor(i["mean_abs_logp_change"]),
        p.get("D_half", 0.06),
        p.get("rho_min", 0.875),
        p.get("rho_max", 0.96),
    )
    alpha_new, beta_new = spo.update_beta(alpha, beta, reward, rho)
    return {
        "baseline": baseline,
        "adv_raw": reward - baseline,
        "adv_batch_normalised": standardise(reward - baseline, p.get("eps", 1e-8), p.get("ddof", 1)),
        "rho": rho,
        "alpha_new": alpha_new,
        "beta_new": beta_new,
        "sample_weight": spo.sampling_weight(baseline, p.get("explore_eps", 0.05)),
    }


def run_spo_init(i, p, _):
    rho_min = p.get("rho_min", 0.875)
    alpha, beta = spo.initial_beta(tensor(i["offline_binary_scores"]), rho_min)
    return {"N_init": spo.initial_worth(rho_min), "alpha": alpha, "beta": beta}


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
    "adv.gae.areal_bootstrap": gae_areal,
    "adv.gae.turn_level": gae_by_turn,
    "adv.gae.length_adaptive_lambda": adaptive_lambda,
    "adv.mc_grpo": run_mc_grpo,
    "adv.gdpo.sample_level": gdpo_sample,
    "adv.gdpo.token_level": gdpo_token,
    "adv.mt_grpo": run_mt_grpo,
    "adv.gigpo.mean_norm": run_gigpo(False),
    "adv.gigpo.mean_std_norm": run_gigpo(True),
    "adv.gigpo.episode_per_trajectory": gigpo_episode,
    "adv.hgpo": run_hgpo,
    "adv.multi_agent.drmas": run_multi_agent,
    "adv.ui_s1": run_ui_s1,
    "adv.igpo.info_gain": igpo_gain,
    "adv.igpo.discounted_turn_adv": igpo_discounted,
    "adv.igpo.released_grpo": igpo_grpo,
    "adv.igpo.released_grpo_discounted": igpo_grpo_discounted,
    "adv.vtrace": run_vtrace,
    "adv.optimal_token_baseline": run_otb,
    "adv.vcpo_opob.paper": opob_paper,
    "adv.vcpo_opob.code_agg": opob_code,
    "adv.vcpo_opob.combined": opob_combined,
    "adv.archer_utterance": run_archer,
    "adv.batch_norm_tokens_areal": batch_norm,
    "adv.spo_single_rollout": run_spo,
    "adv.spo_init": run_spo_init,
}
