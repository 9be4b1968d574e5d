"""Names to functions, as literal dictionaries. Nothing here imports torch.

A part of a recipe is named either by a key below or by an import path `package.module:function`. A function's
keyword-only arguments are the parameters a recipe may set.

| kind | signature |
|---|---|
| advantage | `f(batch: AdvantageBatch, *, params) -> Tensor [B,T] or AdvantageOutputs` |
| normalize | `f(advantages [B,T], mask [B,T], *, params) -> Tensor [B,T]` |
| loss | `f(inputs: LossInputs, *, params) -> LossOutputs` |
| correction | `f(inputs: LossInputs, *, params) -> Tensor [B,T]` weight, 0 rejects |
| aggregation | `f(lengths [B], totals, group [B] or None) -> Tensor [B]` row weights |
| proximal | `f(inputs: LossInputs, *, params) -> Tensor [B,T]` log-probabilities |
| kl | `f(logp [B,T], reference_logp [B,T]) -> Tensor [B,T]` |
| shaping | `f(batch: AdvantageBatch, *, params) -> Tensor [B]` added to the rewards |
| filter | `f(batch: AdvantageBatch, *, params) -> Tensor [B]` bool, False leaves the loss; or advantage weights |
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.import_path import load_object

_A = "asyncrl.algo.advantage."
_L = "asyncrl.algo.loss."
_C = "asyncrl.algo.correction."

ADVANTAGES = {
    "a2tgpo": _A + "a2tgpo:a2tgpo",
    "archer": _A + "archer:archer",
    "dr_grpo": _A + "dr_grpo:dr_grpo",
    "entropy_shaped": _A + "entropy_shaped:entropy_shaped",
    "gae": _A + "gae:gae",
    "gae_turn": _A + "gae_turn:gae_turn",
    "gdpo": _A + "gdpo:gdpo",
    "gigpo": _A + "gigpo:gigpo",
    "gpg": _A + "gpg:gpg",
    "grpo": _A + "grpo:grpo",
    "hierarchical_grpo": _A + "hierarchical_grpo:hierarchical_grpo",
    "hinted_grpo": _A + "hinted_grpo:hinted_grpo",
    "hgpo": _A + "hgpo:hgpo",
    "igpo": _A + "igpo:igpo",
    "igpo_released": _A + "igpo_released:igpo_released",
    "igpo_released_discounted": _A + "igpo_released:igpo_released_discounted",
    "maxrl": _A + "maxrl:maxrl",
    "mc_grpo": _A + "mc_grpo:mc_grpo",
    "mt_grpo": _A + "mt_grpo:mt_grpo",
    "multi_agent": _A + "multi_agent:multi_agent",
    "opo": _A + "opo:opo",
    "optimal_token_baseline": _A + "optimal_token_baseline:optimal_token_baseline",
    "passk": _A + "passk:passk",
    "reinforce": _A + "reinforce:reinforce",
    "reinforce_pp": _A + "reinforce_pp:reinforce_pp",
    "reinforce_pp_baseline": _A + "reinforce_pp:reinforce_pp_baseline",
    "remax": _A + "remax:remax",
    "rloo": _A + "rloo:rloo",
    "spiral": _A + "spiral:spiral",
    "spo": _A + "spo:spo",
    "tir_optimal_token_baseline": _A + "optimal_token_baseline:tir_optimal_token_baseline",
    "tree": _A + "tree:tree",
    "ui_s1": _A + "ui_s1:ui_s1",
    "vcpo": _A + "vcpo:vcpo",
    "vtrace": _A + "vtrace:vtrace",
}

NORMALIZATIONS = {
    "none": "asyncrl.algo.normalize:none",
    "tokens": "asyncrl.algo.normalize:tokens",
    "sequences": "asyncrl.algo.normalize:sequences",
}

LOSSES = {
    "aipo": _L + "importance:aipo",
    "aspo": _L + "aspo:aspo",
    "asympo": _L + "asympo:asympo",
    "atpo": _L + "atpo:atpo",
    "behavior_clip": _L + "decoupled:behavior_clip",
    "cispo": _L + "cispo:cispo",
    "cispo_absolute": _L + "cispo:cispo_absolute",
    "cispo_upper": _L + "cispo:cispo_upper",
    "clip_cov": _L + "covariance:clip_cov",
    "dapo_clip": _L + "ppo:dapo_clip",
    "decoupled_ppo": _L + "decoupled:decoupled_ppo",
    "dppo_kl": _L + "dppo:dppo_kl",
    "dppo_tv": _L + "dppo:dppo_tv",
    "dro": _L + "dro:dro",
    "gmpo": _L + "gmpo:gmpo",
    "gspo": _L + "gspo:gspo",
    "importance_zero": _L + "importance:importance_zero",
    "ipo_masked": _L + "prime_rl:ipo_masked",
    "kimi": _L + "kimi:kimi",
    "kl_cov": _L + "covariance:kl_cov",
    "online_dpo": _L + "preference:online_dpo",
    "online_ipo": _L + "preference:online_ipo",
    "opd_full": _L + "distill:opd_full",
    "opd_sampled": _L + "distill:opd_sampled",
    "ppo_clip": _L + "ppo:ppo_clip",
    "prime_rl": _L + "prime_rl:prime_rl",
    "ref_kl": _L + "prime_rl:ref_kl",
    "reinforce": _L + "importance:reinforce",
    "reinforce_tis": _L + "importance:reinforce_tis",
    "sapo": _L + "sapo:sapo",
    "sat": _L + "sat:sat",
    "sft": _L + "sft:sft",
    "topr_token": _L + "topr:topr_token",
    "topr_trajectory": _L + "topr:topr_trajectory",
    "two_sided_clip": _L + "two_sided:two_sided_clip",
    "vapo": _L + "vapo:vapo",
    "vespo": _L + "vespo:vespo",
}

CORRECTIONS = {
    "behavior_band": _C + "behavior_band:behavior_band",
    "icepop": _C + "masked:icepop",
    "kpop": _C + "kpop:kpop",
    "m2po": _C + "m2po:m2po",
    "mis_geometric": _C + "masked:mis_geometric",
    "mis_product": _C + "masked:mis_product",
    "opsm": _C + "opsm:opsm",
    "outlier_veto": _C + "masked:outlier_veto",
    "sequence_kl": _C + "sequence_kl:sequence_kl",
    "sequence_mask_tis": _C + "masked:sequence_mask_tis",
    "sequence_tis": _C + "truncated:sequence_tis",
    "sequence_tis_or_drop": _C + "masked:sequence_tis_or_drop",
    "token_band": _C + "masked:token_band",
    "token_tis": _C + "truncated:token_tis",
    "top_entropy": _C + "top_entropy:top_entropy",
    "top_entropy_advantage": _C + "top_entropy_advantage:top_entropy_advantage",
    "top_entropy_turns": _C + "top_entropy_turns:top_entropy_turns",
    "tv_mask": _C + "tv_mask:tv_mask",
}

AGGREGATIONS = {
    "prompt_mean": "asyncrl.algo.aggregate:prompt_mean",
    "prompt_mean_token_sum": "asyncrl.algo.aggregate:prompt_mean_token_sum",
    "row_mean_token_sum": "asyncrl.algo.aggregate:row_mean_token_sum",
    "seq_mean_token_mean": "asyncrl.algo.aggregate:seq_mean_token_mean",
    "seq_mean_token_sum": "asyncrl.algo.aggregate:seq_mean_token_sum",
    "seq_mean_token_sum_norm": "asyncrl.algo.aggregate:seq_mean_token_sum_norm",
    "token_mean": "asyncrl.algo.aggregate:token_mean",
    "token_sum": "asyncrl.algo.aggregate:token_sum",
    "trl_dr_grpo": "asyncrl.algo.aggregate:trl_dr_grpo",
    "trl_grpo": "asyncrl.algo.aggregate:trl_grpo",
}

PROXIMAL = {
    "behavior": "asyncrl.algo.proximal.given:behavior",
    "recompute": "asyncrl.algo.proximal.given:recompute",
    "snapshot": "asyncrl.algo.proximal.given:snapshot",
    "ewma": "asyncrl.algo.proximal.given:ewma",
    "loglinear": "asyncrl.algo.proximal.interpolate:loglinear",
    "linear": "asyncrl.algo.proximal.interpolate:linear",
}

KL_ESTIMATORS = {
    "k1": "asyncrl.algo.kl:k1",
    "k2": "asyncrl.algo.kl:k2",
    "k3": "asyncrl.algo.kl:k3",
    "abs": "asyncrl.algo.kl:absolute",
    "k1_straight_through": "asyncrl.algo.kl:k1_straight_through",
    "k3_straight_through": "asyncrl.algo.kl:k3_straight_through",
}

SHAPINGS = {"overlong_soft": "asyncrl.algo.shaping:overlong_soft"}

FILTERS = {
    "dynamic_sampling": "asyncrl.algo.filters:dynamic_sampling",
    "max_variance": "asyncrl.algo.filters:max_variance",
    "overlong": "asyncrl.algo.filters:overlong",
    "pf_ppo": "asyncrl.algo.policy_filtration:pf_ppo",
}

KINDS: dict[str, dict[str, str]] = {
    "advantage": ADVANTAGES,
    "normalize": NORMALIZATIONS,
    "loss": LOSSES,
    "correction": CORRECTIONS,
    "aggregation": AGGREGATIONS,
    "proximal": PROXIMAL,
    "kl": KL_ESTIMATORS,
    "shaping": SHAPINGS,
    "filter": FILTERS,
}


def locate(kind: str, name: str) -> tuple[str, str]:
    """`(module, function)` of a name or import path; ConfigError with the nearest name otherwise."""
    known = KINDS[kind]
    path = known.get(name, name)
    module, separator, function = path.rpartition(":")
    if not separator or not module or not function:
        raise ConfigError(f"algo.{kind}: unknown name {name!r}{did_you_mean(name, known)}")
    return module, function


def short_name(kind: str, name: str) -> str:
    """The registered name of an import path; `name` itself where it has none."""
    return next((known for known, path in KINDS[kind].items() if path == name), name)


def resolve(kind: str, name: str) -> Callable[..., Any]:
    """Import and return the function behind a name or import path."""
    return load_object(f"algo.{kind}", ":".join(locate(kind, name)))


def did_you_mean(word: str, allowed: object) -> str:
    """The end of an error message: the closest allowed word, and all of them."""
    words = sorted(map(str, allowed))  # type: ignore[call-overload]
    close = difflib.get_close_matches(word, words, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "." if words else ""
    return f"{hint} Allowed: {', '.join(words)}" if words else hint
