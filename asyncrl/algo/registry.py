"""Names to functions: the core's, and those that extensions add. Nothing here imports torch.

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

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from asyncrl.errors import ConfigError, did_you_mean
from asyncrl.extensions.table import rows
from asyncrl.import_path import load_object

CORE: dict[str, dict[str, str]] = {
    "advantage": {
        "grpo": "asyncrl.algo.advantage.grpo:grpo",
        "multi_agent": "asyncrl.algo.advantage.multi_agent:multi_agent",
        "reinforce": "asyncrl.algo.advantage.reinforce:reinforce",
    },
    "normalize": {
        "none": "asyncrl.algo.normalize:none",
        "tokens": "asyncrl.algo.normalize:tokens",
        "sequences": "asyncrl.algo.normalize:sequences",
    },
    "loss": {
        "dapo_clip": "asyncrl.algo.loss.ppo:dapo_clip",
        "ppo_clip": "asyncrl.algo.loss.ppo:ppo_clip",
    },
    "correction": {
        "behavior_band": "asyncrl.algo.correction.behavior_band:behavior_band",
        "sequence_tis": "asyncrl.algo.correction.truncated:sequence_tis",
        "token_tis": "asyncrl.algo.correction.truncated:token_tis",
    },
    "aggregation": {
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
    },
    "proximal": {
        "behavior": "asyncrl.algo.proximal.given:behavior",
        "recompute": "asyncrl.algo.proximal.given:recompute",
        "snapshot": "asyncrl.algo.proximal.given:snapshot",
    },
    "kl": {
        "k1": "asyncrl.algo.kl:k1",
        "k2": "asyncrl.algo.kl:k2",
        "k3": "asyncrl.algo.kl:k3",
        "abs": "asyncrl.algo.kl:absolute",
        "k1_straight_through": "asyncrl.algo.kl:k1_straight_through",
        "k3_straight_through": "asyncrl.algo.kl:k3_straight_through",
    },
    "shaping": {},
    "filter": {
        "dynamic_sampling": "asyncrl.algo.filters:dynamic_sampling",
    },
}
"""The parts of the core: what recipes and defaults use. Extensions add theirs at the seam `algo_parts`."""


@functools.cache
def parts() -> Mapping[str, Mapping[str, str]]:
    """Return the import paths of all parts by kind and name, the core's before those of extensions."""
    found = {kind: dict(names) for kind, names in CORE.items()}
    for row in rows("algo_parts"):
        found[row.kind][row.name] = row.path
    return MappingProxyType({kind: MappingProxyType(names) for kind, names in found.items()})


def locate(kind: str, name: str) -> tuple[str, str]:
    """`(module, function)` of a name or import path; ConfigError with the nearest name otherwise."""
    known = parts()[kind]
    path = known.get(name, name)
    module, separator, function = path.rpartition(":")
    if not separator or not module or not function:
        raise ConfigError(f"algo.{kind}: unknown name {name!r}{did_you_mean(name, known)}")
    return module, function


def short_name(kind: str, name: str) -> str:
    """The registered name of an import path; `name` itself where it has none."""
    return next((known for known, path in parts()[kind].items() if path == name), name)


def resolve(kind: str, name: str) -> Callable[..., Any]:
    """Import and return the function behind a name or import path."""
    return load_object(f"algo.{kind}", ":".join(locate(kind, name)))
