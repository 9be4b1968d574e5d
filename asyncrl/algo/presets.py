"""Published methods as sets of parts. A recipe's own parts override them. Nothing here imports torch.

Presets that need something a run must provide (a critic, a teacher, turn rewards, ...) say so through the
`@needs` of their parts. Where no correction is part of the publication, token TIS with cap 2 is added,
because rollouts here always come from another engine; override with `corrections: []`. GRPO's own clip is around
the policy that sampled, which is what `behavior_band` does.
"""

from __future__ import annotations

from typing import Any

_TIS: list[dict[str, Any]] = [{"name": "token_tis", "cap": 2.0}]


def _preset(advantage: str, loss: str, aggregation: str, /, **parts: Any) -> dict[str, Any]:
    return {
        "advantage": {"name": advantage},
        "loss": {"name": loss},
        "aggregation": {"name": aggregation},
        "corrections": _TIS,
        **parts,
    }


PRESETS: dict[str, dict[str, Any]] = {
    # Group-relative advantages with the PPO clip.
    "grpo": _preset("grpo", "ppo_clip", "seq_mean_token_mean", corrections=[{"name": "behavior_band"}]),
    "dr_grpo": _preset("dr_grpo", "ppo_clip", "seq_mean_token_sum_norm"),
    "dapo": _preset("grpo", "dapo_clip", "token_mean", filters=[{"name": "dynamic_sampling"}]),
    "rloo": _preset("rloo", "ppo_clip", "seq_mean_token_sum"),
    "opo": _preset("opo", "ppo_clip", "token_mean"),
    "passk": _preset("passk", "ppo_clip", "token_mean"),
    "maxrl": _preset("maxrl", "ppo_clip", "token_mean"),
    "gpg": _preset("gpg", "reinforce", "token_mean"),
    "mc_grpo": _preset("mc_grpo", "ppo_clip", "seq_mean_token_mean"),
    "gdpo": _preset("gdpo", "ppo_clip", "token_mean"),
    "reinforce_pp": _preset("reinforce_pp", "ppo_clip", "token_mean"),
    "reinforce_pp_baseline": _preset("reinforce_pp_baseline", "ppo_clip", "token_mean"),
    "remax": _preset("remax", "reinforce", "seq_mean_token_sum"),
    "spo": _preset("spo", "ppo_clip", "token_mean", normalize={"name": "sequences", "eps": 1e-8}),
    "spiral": _preset("spiral", "ppo_clip", "token_mean"),
    "mssr": _preset("entropy_shaped", "ppo_clip", "token_mean"),
    # Credit for turns and agents.
    "mt_grpo": _preset("mt_grpo", "ppo_clip", "token_mean"),
    "gigpo": _preset("gigpo", "ppo_clip", "seq_mean_token_mean"),
    "hgpo": _preset("hgpo", "ppo_clip", "seq_mean_token_mean"),
    "ui_s1": _preset("ui_s1", "ppo_clip", "seq_mean_token_mean"),
    "igpo": _preset("igpo", "ppo_clip", "token_mean"),
    "a2tgpo": _preset("a2tgpo", "atpo", "seq_mean_token_mean"),
    "dr_mas": _preset("multi_agent", "ppo_clip", "token_mean"),
    "m_grpo": _preset(
        "multi_agent",
        "ppo_clip",
        "seq_mean_token_mean",
        advantage={"name": "multi_agent", "invocations": 4},
    ),
    # Critics.
    "ppo": _preset("gae", "ppo_clip", "token_mean", normalize={"name": "tokens"}),
    "pf_ppo": _preset(
        "gae", "ppo_clip", "token_mean", normalize={"name": "tokens"}, filters=[{"name": "pf_ppo"}]
    ),
    "ppo_turn": _preset("gae_turn", "ppo_clip", "token_mean", normalize={"name": "tokens"}),
    "vapo": _preset(
        "gae",
        "vapo",
        "token_mean",
        advantage={"name": "gae", "length_adaptive_alpha": 0.05},
    ),
    # One rollout of a task (rollout.group_size = 1) against a critic.
    "sao": _preset(
        "gae",
        "importance_zero",
        "token_mean",
        advantage={"name": "gae", "length_adaptive_alpha": 1.5, "critic_lam": 1.0},
        loss={"name": "importance_zero", "eps_low": 0.3, "eps_high": 5.0},
        corrections=[],
    ),
    "archer": _preset("archer", "reinforce", "seq_mean_token_sum"),
    # The values lag behind those of the actions, which all advantages have in common: without the normalisation, which
    # is not the paper's, they are of one sign and a tiny policy forgets how to end a turn.
    "impala": _preset("vtrace", "reinforce", "token_mean", corrections=[], proximal={"name": "recompute"}),
    # Other surrogates.
    "gspo": _preset(
        "grpo",
        "gspo",
        "seq_mean_token_mean",
        loss={"name": "gspo", "eps_low": 3e-4, "eps_high": 4e-4},
    ),
    "luspo": _preset(
        "grpo",
        "gspo",
        "seq_mean_token_sum",
        loss={"name": "gspo", "eps_low": 3e-4, "eps_high": 4e-4},
    ),
    "atpo": _preset("grpo", "atpo", "seq_mean_token_mean"),
    "clip_cov": _preset("grpo", "clip_cov", "token_mean"),
    "kl_cov": _preset("grpo", "kl_cov", "token_mean"),
    "cispo": _preset("grpo", "cispo", "token_mean", loss={"name": "cispo", "eps_low": 1.0, "eps_high": 4.0}),
    "sapo": _preset("grpo", "sapo", "seq_mean_token_mean"),
    "dppo": _preset("grpo", "dppo_tv", "token_mean"),
    "dro": _preset("rloo", "dro", "seq_mean_token_sum"),
    "gmpo": _preset("grpo", "gmpo", "seq_mean_token_mean"),
    "aspo": _preset("grpo", "aspo", "token_mean"),
    "intellect2": _preset("grpo", "two_sided_clip", "token_mean"),
    # Made for stale data: the behavior policy is part of the loss, so no TIS on top of it.
    "decoupled_ppo": _preset(
        "grpo",
        "decoupled_ppo",
        "token_mean",
        loss={"name": "decoupled_ppo", "behavior_weight_cap": 5.0, "cap_action": "drop"},
        corrections=[],
    ),
    "decoupled_loglinear": _preset(
        "grpo", "decoupled_ppo", "token_mean", corrections=[], proximal={"name": "loglinear"}
    ),
    "ppo_ewma": _preset("grpo", "behavior_clip", "token_mean", corrections=[], proximal={"name": "ewma"}),
    "vespo": _preset("grpo", "vespo", "token_mean", corrections=[]),
    "aipo": _preset("rloo", "aipo", "token_mean", corrections=[]),
    "asympo": _preset("grpo", "asympo", "seq_mean_token_mean", corrections=[]),
    "topr": _preset("reinforce", "topr_trajectory", "seq_mean_token_sum", corrections=[]),
    "kimi": _preset("dr_grpo", "kimi", "seq_mean_token_sum", corrections=[]),
    "prime_rl": _preset("dr_grpo", "prime_rl", "token_mean", corrections=[]),
    "ipo_masked": _preset("dr_grpo", "ipo_masked", "token_mean", corrections=[]),
    "vcpo": _preset(
        "vcpo",
        "reinforce",
        "seq_mean_token_mean",
        advantage={"name": "vcpo", "score": "gradient"},
        corrections=[{"name": "sequence_tis", "cap": 8.0}],
        lr_scaling={"power": 0.5, "base_ess": 1.0},
    ),
    "sat": _preset("grpo", "sat", "token_mean", kl={"estimator": "k3", "coef": 1e-3}),
    # Corrections by name, on GRPO with the token mean.
    "tis": _preset("grpo", "ppo_clip", "token_mean"),
    "icepop": _preset(
        "grpo", "ppo_clip", "token_mean", corrections=[{"name": "icepop", "low": 0.5, "high": 5.0}]
    ),
    "kpop": _preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "kpop"}]),
    "mis": _preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "mis_geometric"}]),
    "m2po": _preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "m2po"}]),
    "top_entropy": _preset(
        "grpo",
        "dapo_clip",
        "token_mean",
        corrections=[{"name": "top_entropy"}, *_TIS],
        filters=[{"name": "dynamic_sampling"}],
    ),
    "d3s": _preset(
        "grpo",
        "ppo_clip",
        "token_mean",
        corrections=[{"name": "top_entropy_advantage"}, *_TIS],
        filters=[{"name": "max_variance"}],
    ),
    "opsm": _preset("grpo", "ppo_clip", "token_mean", corrections=[{"name": "opsm", "delta": 0.1}, *_TIS]),
    "optimal_token_baseline": _preset("tir_optimal_token_baseline", "ppo_clip", "token_mean"),
    # Without rewards, or with pairs of them.
    "online_dpo": _preset("reinforce", "online_dpo", "prompt_mean_token_sum", corrections=[]),
    "online_ipo": _preset("reinforce", "online_ipo", "prompt_mean_token_sum", corrections=[]),
    "opd": _preset("reinforce", "opd_sampled", "token_mean", corrections=[]),
    "opd_full": _preset("reinforce", "opd_full", "token_mean", corrections=[]),
    # The policy after a success of its group is the teacher (teacher.path = "self").
    "sdpo": _preset("reinforce", "opd_full", "token_mean"),
    "sft": _preset("reinforce", "sft", "token_mean", corrections=[]),
}
