"""Presets of published methods whose parts are not all the core's. Nothing here imports torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo.presets import TIS, preset

PRESETS: dict[str, dict[str, Any]] = {
    # Group-relative advantages with the PPO clip.
    "dr_grpo": preset("dr_grpo", "ppo_clip", "seq_mean_token_sum_norm"),
    "rloo": preset("rloo", "ppo_clip", "seq_mean_token_sum"),
    "opo": preset("opo", "ppo_clip", "token_mean"),
    "passk": preset("passk", "ppo_clip", "token_mean"),
    "maxrl": preset("maxrl", "ppo_clip", "token_mean"),
    "gpg": preset("gpg", "reinforce", "token_mean"),
    "mc_grpo": preset("mc_grpo", "ppo_clip", "seq_mean_token_mean"),
    "gdpo": preset("gdpo", "ppo_clip", "token_mean"),
    "reinforce_pp": preset("reinforce_pp", "ppo_clip", "token_mean"),
    "reinforce_pp_baseline": preset("reinforce_pp_baseline", "ppo_clip", "token_mean"),
    "remax": preset("remax", "reinforce", "seq_mean_token_sum"),
    "spo": preset("spo", "ppo_clip", "token_mean", normalize={"name": "sequences", "eps": 1e-8}),
    "spiral": preset("spiral", "ppo_clip", "token_mean"),
    "mssr": preset("entropy_shaped", "ppo_clip", "token_mean"),
    # Credit for turns and agents.
    "mt_grpo": preset("mt_grpo", "ppo_clip", "token_mean"),
    "gigpo": preset("gigpo", "ppo_clip", "seq_mean_token_mean"),
    "hgpo": preset("hgpo", "ppo_clip", "seq_mean_token_mean"),
    "ui_s1": preset("ui_s1", "ppo_clip", "seq_mean_token_mean"),
    "igpo": preset("igpo", "ppo_clip", "token_mean"),
    "a2tgpo": preset("a2tgpo", "atpo", "seq_mean_token_mean"),
    # Critics.
    "ppo": preset("gae", "ppo_clip", "token_mean", normalize={"name": "tokens"}),
    "pf_ppo": preset(
        "gae", "ppo_clip", "token_mean", normalize={"name": "tokens"}, filters=[{"name": "pf_ppo"}]
    ),
    "ppo_turn": preset("gae_turn", "ppo_clip", "token_mean", normalize={"name": "tokens"}),
    "vapo": preset(
        "gae",
        "vapo",
        "token_mean",
        advantage={"name": "gae", "length_adaptive_alpha": 0.05},
    ),
    # One rollout of a task (rollout.group_size = 1) against a critic.
    "sao": preset(
        "gae",
        "importance_zero",
        "token_mean",
        advantage={"name": "gae", "length_adaptive_alpha": 1.5, "critic_lam": 1.0},
        loss={"name": "importance_zero", "eps_low": 0.3, "eps_high": 5.0},
        corrections=[],
    ),
    "archer": preset("archer", "reinforce", "seq_mean_token_sum"),
    # The values lag behind those of the actions, which all advantages have in common: without the normalisation, which
    # is not the paper's, they are of one sign and a tiny policy forgets how to end a turn.
    "impala": preset("vtrace", "reinforce", "token_mean", corrections=[], proximal={"name": "recompute"}),
    # Other surrogates.
    "gspo": preset(
        "grpo",
        "gspo",
        "seq_mean_token_mean",
        loss={"name": "gspo", "eps_low": 3e-4, "eps_high": 4e-4},
    ),
    "luspo": preset(
        "grpo",
        "gspo",
        "seq_mean_token_sum",
        loss={"name": "gspo", "eps_low": 3e-4, "eps_high": 4e-4},
    ),
    "atpo": preset("grpo", "atpo", "seq_mean_token_mean"),
    "clip_cov": preset("grpo", "clip_cov", "token_mean"),
    "kl_cov": preset("grpo", "kl_cov", "token_mean"),
    "cispo": preset("grpo", "cispo", "token_mean", loss={"name": "cispo", "eps_low": 1.0, "eps_high": 4.0}),
    "sapo": preset("grpo", "sapo", "seq_mean_token_mean"),
    "dppo": preset("grpo", "dppo_tv", "token_mean"),
    "dro": preset("rloo", "dro", "seq_mean_token_sum"),
    "gmpo": preset("grpo", "gmpo", "seq_mean_token_mean"),
    "aspo": preset("grpo", "aspo", "token_mean"),
    "intellect2": preset("grpo", "two_sided_clip", "token_mean"),
    # Made for stale data: the behavior policy is part of the loss, so no TIS on top of it.
    "decoupled_ppo": preset(
        "grpo",
        "decoupled_ppo",
        "token_mean",
        loss={"name": "decoupled_ppo", "behavior_weight_cap": 5.0, "cap_action": "drop"},
        corrections=[],
    ),
    "decoupled_loglinear": preset(
        "grpo", "decoupled_ppo", "token_mean", corrections=[], proximal={"name": "loglinear"}
    ),
    "ppo_ewma": preset("grpo", "behavior_clip", "token_mean", corrections=[], proximal={"name": "ewma"}),
    "vespo": preset("grpo", "vespo", "token_mean", corrections=[]),
    "aipo": preset("rloo", "aipo", "token_mean", corrections=[]),
    "asympo": preset("grpo", "asympo", "seq_mean_token_mean", corrections=[]),
    "topr": preset("reinforce", "topr_trajectory", "seq_mean_token_sum", corrections=[]),
    "kimi": preset("dr_grpo", "kimi", "seq_mean_token_sum", corrections=[]),
    "prime_rl": preset("dr_grpo", "prime_rl", "token_mean", corrections=[]),
    "ipo_masked": preset("dr_grpo", "ipo_masked", "token_mean", corrections=[]),
    "vcpo": preset(
        "vcpo",
        "reinforce",
        "seq_mean_token_mean",
        advantage={"name": "vcpo", "score": "gradient"},
        corrections=[{"name": "sequence_tis", "cap": 8.0}],
        lr_scaling={"power": 0.5, "base_ess": 1.0},
    ),
    "sat": preset("grpo", "sat", "token_mean", kl={"estimator": "k3", "coef": 1e-3}),
    # Corrections by name, on GRPO with the token mean.
    "icepop": preset(
        "grpo", "ppo_clip", "token_mean", corrections=[{"name": "icepop", "low": 0.5, "high": 5.0}]
    ),
    "kpop": preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "kpop"}]),
    "mis": preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "mis_geometric"}]),
    "m2po": preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "m2po"}]),
    "top_entropy": preset(
        "grpo",
        "dapo_clip",
        "token_mean",
        corrections=[{"name": "top_entropy"}, *TIS],
        filters=[{"name": "dynamic_sampling"}],
    ),
    "d3s": preset(
        "grpo",
        "ppo_clip",
        "token_mean",
        corrections=[{"name": "top_entropy_advantage"}, *TIS],
        filters=[{"name": "max_variance"}],
    ),
    "opsm": preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "opsm", "delta": 0.1}, *TIS]),
    "optimal_token_baseline": preset("tir_optimal_token_baseline", "ppo_clip", "token_mean"),
    # Without rewards, or with pairs of them.
    "online_dpo": preset("reinforce", "online_dpo", "prompt_mean_token_sum", corrections=[]),
    "online_ipo": preset("reinforce", "online_ipo", "prompt_mean_token_sum", corrections=[]),
    # The policy after a success of its group is the teacher (teacher.path = "self").
    "sft": preset("reinforce", "sft", "token_mean", corrections=[]),
}
