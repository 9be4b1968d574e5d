"""Vectors named `adv.*` that compare steps, turns or agents instead of whole episodes."""

from __future__ import annotations

import torch

from asyncrl.algo.advantage import multi_agent, steps
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.answer_probability import answer_probability
from asyncrl.algo.groups import group_mean
from asyncrl.extensions.published.advantage import (
    a2tgpo,
    gigpo,
    hgpo,
    hierarchical_grpo,
    igpo,
    igpo_released,
    ui_s1,
)
from tests.conformance.tensors import keys, mask_of, tensor


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
    probability = torch.stack([answer_probability(tensor(row)) for row in i["gt_token_logp_per_context"]])
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


def run_a2tgpo(i, p, _):
    """One token for each turn."""
    turns = [len(row) for row in i["answer_probability"]]
    width = max(turns)
    probability = tensor([row + [torch.nan] * (width - len(row)) for row in i["answer_probability"]])
    turn_ids = torch.tensor([[k if k < count else -1 for k in range(width)] for count in turns])
    batch = AdvantageBatch(
        rewards=tensor(i["rewards"]), group=torch.zeros(len(turns), dtype=torch.long), mask=turn_ids >= 0,
        turn_ids=turn_ids, turn_rewards=[[0.0] * count for count in turns], answer_probability=probability,
    )  # fmt: skip
    found = a2tgpo.a2tgpo(batch, **p)
    return {
        "adv": [found.advantages[row, :count].tolist() for row, count in enumerate(turns)],
        "clip_scale": [found.clip_scale[row, :count].tolist() for row, count in enumerate(turns)],
    }


def run_hierarchical(i, p, _):
    rewards = tensor(i["rewards"])
    compared = hierarchical_grpo.peers(keys(i["group"]), i["agent"], i["rollout"], p["rollout_agents"])
    return {"adv": rewards - group_mean(rewards, compared)}


ADAPTERS = {
    "adv.a2tgpo": run_a2tgpo,
    "adv.hierarchical_grpo": run_hierarchical,
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
}
