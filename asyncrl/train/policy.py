"""The trained models as modules: token ids in, log-probabilities of the sampled tokens (or values) out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.modules.dropout import _DropoutNd

from asyncrl.config import LoraConfig
from asyncrl.errors import ConfigError
from asyncrl.image_processor import ImageProcessor, load_image_processor
from asyncrl.train.fused_logprobs import can_fuse, fused_logp
from asyncrl.train.lora import add_adapter
from asyncrl.train.prefix_tree import (
    PrefixTree,
    enable_prefix_trees,
    run_trunk,
    tree_of,
    uses_prefix_trees,
)
from asyncrl.train.quantized_forward import quantize_forward
from asyncrl.train.router_replay import KEYWORD, RouterReplay, recorded_experts
from asyncrl.train.sequence_parallel import current
from asyncrl.train.token_scores import Head, TeacherStates, score_tokens
from asyncrl.train.vision import Placed, row_images, run_vision_trunk

FULL = LoraConfig()
"""No adapter: all weights are trained."""
VALUES = ("values", "end_values")
"""What a value head gives: see `read_values`."""
MAX_LOGITS_ERROR = 0.01
"""Relative difference allowed between a model's own logits and those computed here: rounding alone."""
PROBE = "_probe_once_divided"
RANDOM = ("dropout", "pdrop", "layerdrop", "jitter")
"""Parts of the names under which transformers' models keep the rates of what is random in training mode."""


@dataclass(frozen=True, slots=True)
class Matching:
    """In what a model's forward passes follow the engine that sampled."""

    router_replay: bool = False
    quantization: str = "off"


class PolicyModel(nn.Module):
    """Wraps a causal LM so that the forward pass computes logits only where a token was sampled.

    Prompts and observations need no logits; with short turns they are most of the tokens, and the vocabulary
    projection is most of the memory. Logits are computed a chunk of tokens at a time, and once more in the backward
    pass, so nothing of the size of tokens times vocabulary is kept. With `value_head` the trunk also feeds a critic.
    Shared prefixes are computed once where the model supports it (`asyncrl.train.prefix_tree`). With `router_replay`
    tokens go to the experts that `asyncrl.train.router_replay.replaying` was given. `image_processor` is that of a
    vision model.
    """

    def __init__(
        self,
        model: Any,
        value_head: bool = False,
        router_replay: bool = False,
        image_processor: ImageProcessor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.image_processor = image_processor
        self.replay = RouterReplay(model) if router_replay else None
        self.fused = False
        """Whether log-probabilities come from a fused kernel where it can (`asyncrl.train.fused_logprobs`)."""
        config = model.config.get_text_config()
        self.model.lm_head.forward = Head(model.lm_head, config)
        self.has_values = value_head
        if value_head:
            self.value_head = _new_head(config.hidden_size, model.dtype)

    def forward(
        self,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...] = (),
        teacher: TeacherStates | None = None,
        images: Placed = (),
    ) -> dict[str, Tensor]:
        """Return `logp` [B,T] and what `want` names; everything is zero where `mask` is False.

        `logp[b, t]` is the log-probability of `token_ids[b, t]` given what precedes it, at `temperature`.
        Rows are padded on the right: causal attention keeps padding out of every sampled position, so no
        attention mask is needed. `entropy` and `sum_pi_squared` [B,T] are of the full distribution, `teacher_kl`
        [B,T] its divergence from that of `teacher`. `values` gives `values` [B,T] and `end_values` [B] (see
        `read_values`); `detached_values` the same without gradient into the trunk. `images`
        are those of each row.
        `states` gives the hidden state [M,H] before each sampled token, row by row; wanted alone, without `logp`.
        """
        target = _after_first(mask)
        run = self._run(token_ids, mask, target, images)
        if want == ("states",):
            return {"states": run.of_all(run.states)}
        given = (
            None if teacher is None else teacher.states if run.first is None else teacher.states[run.first]
        )
        vocab_size = self.model.config.get_text_config().vocab_size
        score = partial(score_tokens, run.labels, vocab_size, temperature, want, teacher, given)
        head: Head = self.model.lm_head.forward
        if self.fused and can_fuse(head, temperature, want, len(run.labels)):
            score = partial(fused_logp, head, run.labels)
        found = {
            name: _scatter(run.of_all(part), target)
            for name, part in self.model.lm_head(run.states, score).items()
        }
        if "states" in want:
            found["states"] = run.of_all(run.states)
        if self.has_values and {"values", "detached_values"} & set(want):
            hidden = run.hidden.detach() if "detached_values" in want else run.hidden
            found |= read_values(self.value_head, hidden, run.tree, target)
        return found

    def _run(self, token_ids: Tensor, mask: Tensor, target: Tensor, images: Placed) -> _Run:
        """Run the trunk; with shared prefixes each distinct token is computed and scored once."""
        experts = recorded_experts(token_ids.device) if self.replay is not None else None
        if not uses_prefix_trees(self.model):
            if current() is not None:
                raise ConfigError(
                    f"train.sequence_parallel: must be 1 for {type(self.model).__name__}, whose attention cannot be "
                    "computed over packed rows"
                )
            more = {} if experts is None else {KEYWORD: experts}
            hidden = trunk_states(self.model.base_model, self.image_processor, token_ids, images, more)
            return _Run(hidden, hidden[:, :-1][target[:, 1:]], token_ids[target])
        tree = tree_of(token_ids, mask, experts)
        more = {} if experts is None else {KEYWORD: experts.flatten(0, 1)[tree.sources]}
        nodes = run_trunk(self.model.base_model, tree, more)
        chosen, again = torch.unique(tree.rows[target], return_inverse=True)
        first = torch.empty_like(chosen).scatter_(0, again, torch.arange(len(again), device=chosen.device))
        before = tree.parents[chosen]
        mine = tree.mine(before)
        states = nodes[before[mine] - tree.part.start]
        return _Run(nodes, states, tree.token_ids[chosen[mine]], tree, first[mine], again, mine)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a pass of the trunk gives: on this rank's part of the tokens, where several compute rows together."""

    hidden: Tensor
    """[B,T,H] of the rows or, with a tree, [N,H] of the nodes that this rank computes."""
    states: Tensor
    """[K,H] before each token to be scored."""
    labels: Tensor
    """[K] their ids."""
    tree: PrefixTree | None = None
    first: Tensor | None = None
    """[K] where each occurs first among all M sampled tokens."""
    again: Tensor | None = None
    """[M] which of the distinct sampled tokens each of them is."""
    mine: Tensor | None = None
    """[distinct] which of these this rank scores: K of them."""

    def of_all(self, part: Tensor) -> Tensor:
        """Return values [M,...] of all sampled tokens for those [K,...] of the scored ones."""
        if self.again is None:
            return part
        assert self.tree is not None and self.mine is not None
        if self.tree.group is not None:
            part = self.tree.group.join(part, self.mine)
        return part.index_select(0, self.again)


class CriticModel(nn.Module):
    """A transformer with a value head, initialised from the policy's trunk; starts at value 0."""

    def __init__(self, model: Any, image_processor: ImageProcessor | None = None) -> None:
        super().__init__()
        self.model = model.base_model
        self.image_processor = image_processor
        self.value_head = _new_head(model.config.get_text_config().hidden_size, model.dtype)

    def forward(self, token_ids: Tensor, mask: Tensor, images: Placed = ()) -> dict[str, Tensor]:
        """Return `VALUES`; see `read_values`."""
        tree = tree_of(token_ids, mask) if uses_prefix_trees(self.model) else None
        if tree is not None:
            hidden = run_trunk(self.model, tree)
        else:
            hidden = trunk_states(self.model, self.image_processor, token_ids, images)
        return read_values(self.value_head, hidden, tree, _after_first(mask))


def trunk_states(
    trunk: Any,
    processor: ImageProcessor | None,
    token_ids: Tensor,
    images: Placed,
    more: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    """Return the hidden states [B,T,H] of rows; `processor` is that of a vision model, whose rows may have `images`.

    more: further arguments of a text model's trunk.
    """
    if processor is None:
        return trunk(input_ids=token_ids, use_cache=False, **more).last_hidden_state
    shape = (token_ids.shape[0], token_ids.shape[1])
    return run_vision_trunk(trunk, token_ids, row_images(processor, images, shape).to(token_ids.device))


def read_values(head: nn.Module, hidden: Tensor, tree: PrefixTree | None, mask: Tensor) -> dict[str, Tensor]:
    """Return what a value head reads from hidden states [B,T,H], or [N,H] of a tree's nodes.

    `values` [B,T]: `values[b, t]` is read one position earlier; it is the value of the state in which token t was
    chosen. `end_values` [B] is read at the last sampled token: the value of what follows it.
    """
    after = head(hidden).squeeze(-1).float()
    if tree is not None:
        if tree.group is not None:
            mine = tree.mine(torch.arange(len(tree.token_ids), device=after.device))
            after = tree.group.join(after[: int(mine.sum())], mine)
        after = after[tree.rows]
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, positions, 0).amax(-1)
    return {
        "values": _scatter(after[:, :-1][mask[:, 1:]], mask),
        "end_values": after[torch.arange(len(last), device=mask.device), last],
    }


def _after_first(mask: Tensor) -> Tensor:
    """Return `mask` [B,T] without the first token of each row, which nothing precedes."""
    target = mask.clone()
    target[:, 0] = False
    return target


def _new_head(size: int, dtype: torch.dtype) -> nn.Linear:
    """Return a value head that says 0."""
    head = nn.Linear(size, 1, dtype=dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Place [N,...] values at the True positions of [B,T] `mask`, zeros elsewhere; keeps the gradient."""
    shape = (*mask.shape, *values.shape[1:])
    where = mask if values.ndim == 1 else mask[..., None].expand(shape)
    return torch.zeros(shape, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def load_policy(
    path: str,
    dtype: str,
    gradient_checkpointing: bool = False,
    value_head: bool = False,
    lora: LoraConfig = FULL,
    seed: int = 0,
    matching: Matching = Matching(),
    offload_activations: bool = False,
) -> PolicyModel:
    """Load a causal LM from a folder or hub name, to be trained; with a rank in `lora` only an adapter of it is."""
    model, image_processor = _load(path, dtype, gradient_checkpointing, offload_activations)
    if lora.rank:
        if image_processor is not None:
            raise ConfigError(
                f"model.lora.rank: must be 0 for {path}, a vision model: all its weights are trained"
            )
        add_adapter(model, lora, seed)
    if matching.quantization != "off":
        if image_processor is not None:
            raise ConfigError(f"engine.quantization: must be off for {path}, a vision model")
        quantize_forward(model, matching.quantization)
    policy = PolicyModel(model, value_head, matching.router_replay, image_processor)

    def probes() -> None:
        enable_prefix_trees(model)
        if policy.replay is not None:
            policy.replay.probe(model)
        check_logits(policy, path)

    _when_it_computes(policy, model, probes)
    return policy.train()


def load_frozen(
    path: str, dtype: str, lora: LoraConfig = FULL, seed: int = 0, matching: Matching = Matching()
) -> PolicyModel:
    """Load a causal LM that is only read: a reference, a teacher, an averaged policy."""
    policy = load_policy(path, dtype, lora=lora, seed=seed, matching=matching)
    return policy.eval().requires_grad_(False)


@torch.no_grad()
def check_logits(policy: PolicyModel, path: str) -> None:
    """Raise `ConfigError` when the model's own forward pass does not end in what is computed here."""
    policy.eval()
    token_ids = torch.arange(4, device=policy.model.device)[None]
    trunk = policy.model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
    # Called as a module, so that ZeRO-3 gathers its weight.
    ours = policy.model.lm_head(trunk, lambda project, _, states: project(states)).float()
    own = policy.model(input_ids=token_ids, use_cache=False).logits.float()
    if not float((ours - own).norm()) <= MAX_LOGITS_ERROR * float(own.norm()):
        raise ConfigError(
            f"model.path: {path}: the logits of {type(policy.model).__name__} are not its lm_head's, so its "
            "log-probabilities cannot be computed in chunks; it cannot be trained"
        )


def load_critic(
    path: str,
    dtype: str,
    gradient_checkpointing: bool = False,
    offload_activations: bool = False,
) -> CriticModel:
    """Load a critic that starts from a causal LM's trunk, to be trained."""
    model, image_processor = _load(path, dtype, gradient_checkpointing, offload_activations)
    critic = CriticModel(model, image_processor)
    _when_it_computes(critic, model, lambda: enable_prefix_trees(model))
    return critic.train()


def _when_it_computes(module: nn.Module, model: Any, probe: Callable[[], Any]) -> None:
    """Run what needs a forward pass of the loaded `model`; of a divided one, leave it in `module` for its engine."""
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        module.__dict__[PROBE] = probe
    else:
        probe()


def probe(module: nn.Module) -> None:
    """Run what a loaded module left to be run once a DeepSpeed engine has it. A collective under ZeRO-3."""
    training = module.training
    module.__dict__.pop(PROBE, lambda: None)()
    module.train(training)


def _load(
    path: str, dtype: str, gradient_checkpointing: bool, offload_activations: bool
) -> tuple[Any, ImageProcessor | None]:
    """Return a model, and the image processor of a vision model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    image_processor = load_image_processor(path)
    kind = AutoModelForCausalLM if image_processor is None else AutoModelForImageTextToText
    model = kind.from_pretrained(path, dtype=getattr(torch, dtype))
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        # Of transformers' attentions "sdpa", the default, leaves the cap of Gemma 2 out without a word.
        model.set_attn_implementation("eager")
    make_deterministic(model)
    if gradient_checkpointing:
        # transformers checkpoints in training mode only. The reentrant kind sends no gradient to an adapter.
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    if offload_activations:
        if image_processor is not None:
            raise ConfigError(f"train.offload_activations: must be false for {path}, a vision model")
        keep_activations_on_host(model.base_model)
    return model, image_processor


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
