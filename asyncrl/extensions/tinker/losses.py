"""The losses of Tinker's protocol, of one row each: sums over its tokens, as the service's documentation defines them.

    ratio = exp(logp - behavior)
    cross_entropy          -sum w logp
    importance_sampling    -sum ratio A
    ppo                    -sum min(ratio A, clip(ratio, low, high) A)
    cispo                  -sum sg(clip(ratio, low, high)) logp A
    dro                    -sum (logp A - beta/2 (logp - behavior)^2)
    gspo                   ppo with  ratio = sg(exp(mean over the marked tokens of (logp - behavior))) p / sg(p)

`sg` lets no gradient through. Sources: https://tinker-docs.thinkingmachines.ai/tinker/losses; PPO arXiv 1707.06347,
CISPO 2506.13585, DRO 2405.19107, GSPO 2507.18071.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.errors import InputError

Settings = Mapping[str, float | str]
Inputs = Mapping[str, Tensor]
"""[N] each, or [M] of the listed targets: what a row brings besides its targets."""
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
CLIP = {LOW: 0.8, HIGH: 1.2}
"""The service's bounds of a ratio, unless a request has others."""


def cross_entropy(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """Negative log-likelihood of the targets by their weights."""
    return -(logp * inputs["weights"]).sum()


def importance_sampling(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """REINFORCE with the ratio to the behavior policy as weight, never clipped."""
    return -(_ratio(logp, inputs) * inputs["advantages"]).sum()


def ppo(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """The clipped surrogate around the behavior policy."""
    return _clipped(_ratio(logp, inputs), inputs, settings)


def cispo(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """REINFORCE with the clipped ratio as weight."""
    weight = _clip(_ratio(logp, inputs).detach(), inputs, settings)
    return -(weight * logp * inputs["advantages"]).sum()


def dro(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """Policy gradient with a quadratic penalty on the log-ratio."""
    penalty = 0.5 * _number(settings, "beta") * (logp - inputs["logprobs"]) ** 2
    return -(logp * inputs["advantages"] - penalty).sum()


def gspo(logp: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """The clipped surrogate with one ratio for the sequence, whose tokens keep their own gradients."""
    marked = inputs["sequence_ratio_mask"] != 0
    if not bool(marked.any()):
        raise InputError("sequence_ratio_mask: marks no token")
    mean = (logp.detach() - inputs["logprobs"])[marked].mean()
    return _clipped(torch.exp(mean + logp - logp.detach()), inputs, settings)


def _ratio(logp: Tensor, inputs: Inputs) -> Tensor:
    return torch.exp(logp - inputs["logprobs"])


def _clipped(ratio: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, inputs, settings) * advantages).sum()


def _clip(ratio: Tensor, inputs: Inputs, settings: Settings) -> Tensor:
    """Bound a ratio: by a row's own bounds for each token, else by those of the request."""
    low, high = (
        inputs[name] if name in inputs else torch.tensor(_number(settings, name, default))
        for name, default in CLIP.items()
    )
    return torch.maximum(torch.minimum(ratio, high.to(ratio)), low.to(ratio))


def _number(settings: Settings, name: str, default: float | None = None) -> float:
    found = settings.get(name, default)
    if found is None:
        raise InputError(f"loss_fn_config.{name}: must be given, a number")
    if not isinstance(found, float | int):
        raise InputError(f"loss_fn_config.{name}: must be a number, got {found!r}")
    return float(found)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, and what it reads."""

    compute: Callable[[Tensor, Inputs, Settings], Tensor]
    """Log-probabilities of a row's targets, the row's inputs and the request's settings, to the row's sum."""
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


_BEHAVIOR = ("logprobs", "advantages")
LOSSES = {
    "cross_entropy": Loss(cross_entropy, ("weights",)),
    "importance_sampling": Loss(importance_sampling, _BEHAVIOR),
    "ppo": Loss(ppo, _BEHAVIOR, tuple(CLIP), tuple(CLIP)),
    "cispo": Loss(cispo, _BEHAVIOR, tuple(CLIP), tuple(CLIP)),
    "dro": Loss(dro, _BEHAVIOR, (), ("beta",)),
    "gspo": Loss(gspo, (*_BEHAVIOR, "sequence_ratio_mask"), tuple(CLIP), tuple(CLIP)),
}


def loss_of(name: str, settings: Settings) -> Loss:
    """Return a loss by its name. Raises `InputError` for an unknown one, and for settings that it does not read."""
    loss = LOSSES.get(name)
    if loss is None:
        raise InputError(f"loss_fn: unknown loss {name!r}; this server has {', '.join(LOSSES)}")
    if unread := settings.keys() - set(loss.settings):
        allowed = ", ".join(loss.settings) or "none"
        raise InputError(f"loss_fn_config.{min(unread)}: {name} does not read it; allowed: {allowed}")
    return loss
