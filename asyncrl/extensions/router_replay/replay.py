"""Forward passes of a mixture of experts through the experts that the engine chose (R3, arXiv 2510.11370).

Where two experts are almost equally likely, rounding decides, and engine and trainer round differently: the token then
takes another way, and its log-probability and all later ones differ by far more than rounding. A replayed router keeps
the recorded experts and computes their gate weights from its own logits, so gradients reach it as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.router_replay.token_extra import EXPERTS, OWN_CHOICE
from asyncrl.train.models.forward_change import ForwardChange
from asyncrl.train.models.policy import Extras
from asyncrl.types import Trajectory

KEYWORD = "replayed_experts"
"""The argument [B,T,layers,K] by which the trunk hands its layers the experts of their tokens."""
MAX_GATE_ERROR = 0.02
"""Largest difference between a router's own gate weights and those computed here: bfloat16's rounding."""
_LAYER = re.compile(r"(?P<layer>.*\blayers\.(?P<index>\d+))\..*")


def _softmax_of_chosen(logits: Tensor, experts: Tensor, router: Any) -> Tensor:
    return logits.gather(-1, experts).softmax(-1)


def _chosen_of_softmax(logits: Tensor, experts: Tensor, router: Any) -> Tensor:
    return logits.softmax(-1).gather(-1, experts)


def _chosen_of_sigmoid(logits: Tensor, experts: Tensor, router: Any) -> Tensor:
    weights = logits.sigmoid().gather(-1, experts)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * getattr(router, "routed_scaling_factor", 1.0)


GateWeights = Callable[[Tensor, Tensor, Any], Tensor]
FORMS: tuple[GateWeights, ...] = (_softmax_of_chosen, _chosen_of_softmax, _chosen_of_sigmoid)
"""How families compute gate weights [N,K] from logits [N,E] and experts [N,K]: Mixtral, gpt-oss and Qwen3-MoE with
normalisation; OLMoE and Qwen3-MoE without; DeepSeek-V3 and GLM-4-MoE."""


class RouterReplay:
    """Hooks on a causal LM of transformers by which its routers can be given their experts.

    Implements `asyncrl.train.models.policy.TrunkInput`. Raises `ConfigError` for a model without experts, or whose
    routers are of a kind that is not known.
    """

    kind = EXPERTS
    keyword = KEYWORD

    def __init__(self, model: Any) -> None:
        self.name = type(model).__name__
        self.routers = [
            _Router(model, name, module)
            for name, module in model.named_modules()
            if type(module).__name__.lower().endswith("router")
        ]
        if not self.routers:
            raise ConfigError(f"train.router_replay: {self.name} has no routers; set it to false")
        self.num_experts = min(router.num_experts for router in self.routers)
        self.shape = (model.config.get_text_config().num_hidden_layers, self.routers[0].top_k)
        """Layers of the model, and experts of a token in each."""

    def given(self, extras: Extras) -> Tensor | None:
        """See `TrunkInput`: [B,T,layers,K]. A token with `OWN_CHOICE` is routed as ever, and so are all without it."""
        found: Tensor | None = extras.get(EXPERTS)
        return found

    def check(self, trajectory: Trajectory) -> None:
        """Raise `ConfigError` unless the experts of every token that a sampled one follows are recorded."""
        experts = trajectory.extras.get(EXPERTS)
        episode = f"train.router_replay: task {trajectory.task_id} episode {trajectory.episode_index}"
        last = int(np.flatnonzero(trajectory.loss_mask)[-1])
        if experts is None or len(experts) < last:
            raise ConfigError(
                f"{episode}: the engine reported the experts of {0 if experts is None else len(experts)} tokens, and "
                f"{last} come before the last one sampled; engines must be started with this key"
            )
        if experts.shape[1:] != self.shape or int(experts.max()) >= self.num_experts:
            raise ConfigError(
                f"{episode}: {self.name} has {self.shape[0]} layers, {self.num_experts} experts and takes "
                f"{self.shape[1]} of them, but the engine reported {list(experts.shape)} of up to {int(experts.max())}"
            )

    @torch.no_grad()
    def probe(self, model: Any) -> None:
        """Find how the routers weigh, and that experts reach all of them. To be called before anything is replayed.

        Raises `ConfigError` where they do not.
        """
        training = model.training
        model.eval()
        vocab_size = model.config.get_text_config().vocab_size
        token_ids = torch.arange(16, device=model.device).remainder(vocab_size)[None]
        model.base_model(input_ids=token_ids, use_cache=False)
        # All tokens to the same experts.
        given = torch.arange(self.shape[1], device=model.device).expand(*token_ids.shape, *self.shape)
        model.base_model(input_ids=token_ids, use_cache=False, **{KEYWORD: given})
        if not all(router.replayed for router in self.routers):
            raise ConfigError(
                f"train.router_replay: {self.name} does not hand its layers what they would replay; set it to false"
            )
        model.train(training)


class Replayed(ForwardChange):
    """Has a model's routers take recorded experts."""

    follows_records = True

    def apply(self, model: Any, path: str, text_alone: bool) -> RouterReplay:
        """See `ForwardChange`."""
        return RouterReplay(model)


def replaying(config: Config) -> Replayed:
    """Return the change of a run with `train.router_replay`."""
    return Replayed()


class _Router:
    """One router, and the layer that it is in."""

    def __init__(self, model: Any, name: str, module: nn.Module) -> None:
        self.name = f"{type(model).__name__}'s {name} ({type(module).__name__})"
        place = _LAYER.fullmatch(name)
        if place is None or not hasattr(module, "top_k") or not hasattr(module, "num_experts"):
            raise ConfigError(f"train.router_replay: cannot replay {self.name}; set it to false")
        self.index = int(place["index"])
        self.top_k = int(module.top_k)  # type: ignore[arg-type]
        self.num_experts = int(module.num_experts)  # type: ignore[arg-type]
        self.weigh: GateWeights | None = None
        self.replayed = False
        self._next: Tensor | None = None
        layer: Any = model.get_submodule(place["layer"])
        layer.register_forward_pre_hook(self._keep, with_kwargs=True)
        module.register_forward_hook(self._replace)

    def _keep(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Keep the layer's experts until its router runs. Checkpointing calls the layer again with the same ones."""
        experts = kwargs.pop(KEYWORD, None)
        self._next = None if experts is None else experts[..., self.index, :].flatten(0, 1)
        return args, kwargs

    def _replace(self, router: nn.Module, args: Any, output: Any) -> Any:
        """Return (logits [N,E], gate weights [N,K], experts [N,K]) with the experts kept."""
        logits, weights, own = output
        if self.weigh is None:
            self.weigh = self._find_form(router, logits, weights, own)
        given, self._next = self._next, None
        if given is None:
            return output
        self.replayed = True
        experts = torch.where(given == OWN_CHOICE, own, given.to(own.dtype))
        return logits, self.weigh(logits.float(), experts, router).to(weights.dtype), experts

    def _find_form(self, router: nn.Module, logits: Tensor, weights: Tensor, own: Tensor) -> GateWeights:
        """Return the form that gives the router's own weights at its own experts."""

        def error(form: GateWeights) -> float:
            return float((form(logits.float(), own, router) - weights).abs().max())

        best = min(FORMS, key=error)
        if not error(best) <= MAX_GATE_ERROR:
            raise ConfigError(
                f"train.router_replay: the gate weights of {self.name} are of an unknown form; set it to false"
            )
        return best
