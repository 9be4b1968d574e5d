"""Loads models as a run wants them: with what is changed of them, with heads, with what their layers read besides.

Nothing is imported of what is not asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn.modules.dropout import _DropoutNd

from asyncrl.errors import ConfigError
from asyncrl.train.models.policy import (
    PolicyModel,
    RunRows,
    TrunkInput,
    check_logits,
    run_rows,
    when_it_computes,
)
from asyncrl.train.models.prefix_tree import enable_prefix_trees

if TYPE_CHECKING:
    from asyncrl.train.models.forward_change import ForwardChange

RANDOM = ("dropout", "pdrop", "layerdrop", "jitter")
"""Parts of the names under which transformers' models keep the rates of what is random in training mode."""


def load_policy(
    path: str,
    dtype: str,
    gradient_checkpointing: bool = False,
    heads: Mapping[str, Callable[[Any], nn.Module]] = MappingProxyType({}),
    changes: Sequence[ForwardChange] = (),
    offload_activations: bool = False,
) -> PolicyModel:
    """Load a causal LM from a folder or hub name, to be trained.

    changes: what is made of it before its first pass, in this order. heads: what makes further heads of the trunk, by
    their names.
    """
    model, rows = load_model(path, dtype, gradient_checkpointing, offload_activations)
    text_alone = rows is run_rows
    inputs: list[TrunkInput] = []
    for change in changes:
        if (read := change.apply(model, path, text_alone)) is not None:
            inputs.append(read)
    policy = PolicyModel(model, rows, inputs, {name: make(model) for name, make in heads.items()})

    def probes() -> None:
        enable_prefix_trees(model)
        for one in inputs:
            one.probe(model)
        check_logits(policy, path)

    when_it_computes(policy, model, probes)
    return policy.train()


def load_frozen(path: str, dtype: str, changes: Sequence[ForwardChange] = ()) -> PolicyModel:
    """Load a causal LM that is only read: a reference, a teacher, an averaged policy."""
    policy = load_policy(path, dtype, changes=changes)
    return policy.eval().requires_grad_(False)


def load_model(
    path: str, dtype: str, gradient_checkpointing: bool, offload_activations: bool
) -> tuple[Any, RunRows]:
    """Return a model of transformers, and what runs its trunk over rows. Raises `ConfigError` for one of a kind that is
    not known."""
    from transformers import AutoModelForCausalLM

    from asyncrl.model_kinds import Trained, kind_of

    trained = (
        Trained(AutoModelForCausalLM, run_rows) if (kind := kind_of(path)) is None else kind.trained(path)
    )
    rows: RunRows = trained.rows
    model = trained.loader.from_pretrained(path, dtype=getattr(torch, dtype))
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        # Of transformers' attentions "sdpa", the default, leaves the cap of Gemma 2 out without a word.
        model.set_attn_implementation("eager")
    make_deterministic(model)
    if gradient_checkpointing:
        # transformers checkpoints in training mode only. The reentrant kind sends no gradient to an adapter.
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    if offload_activations:
        if rows is not run_rows:
            raise ConfigError(f"train.offload_activations: must be false for {path}, a vision model")
        keep_activations_on_host(model.base_model)
    return model, rows


def keep_activations_on_host(trunk: Any) -> None:
    """Make a model keep what its forward pass saves for the backward pass in host memory, pinned beside a GPU.

    With gradient checkpointing that is the input of each layer; without it weights would be copied, too.
    """
    forward = trunk.forward

    @functools.wraps(forward)
    def offloading(*args: Any, **given: Any) -> Any:
        with save_on_cpu(pin_memory=torch.cuda.is_available()):
            return forward(*args, **given)

    trunk.forward = offloading


def make_deterministic(model: Any) -> None:
    """Turn off what is random in training mode: dropout, layer drop and a router's jitter.

    The policy that is trained is the one that sampled, whose log-probabilities have none of these.
    """
    configs = {id(config): config for config in (model.config, model.config.get_text_config())}
    for owner in (*configs.values(), *model.modules()):
        for name, value in list(vars(owner).items()):
            if isinstance(value, float) and any(word in name for word in RANDOM):
                setattr(owner, name, 0.0)
        if isinstance(owner, _DropoutNd):
            owner.p = 0.0
