"""Forward passes with the rounding of a quantised engine (Jet-RL, arXiv 2601.14243).

An engine that computes in eight bits samples from another policy than the one that a trainer in bfloat16 computes. Here
the trainer's linear layers round weights and activations as the engine's do. Gradients are those of a plain linear
layer at the rounded values (straight-through), and the weights that are trained stay whole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.quantization.rounding import LAYERS, is_quantized, quantize
from asyncrl.extensions.quantization.settings import QuantizationConfig
from asyncrl.train.models.forward_change import ForwardChange


class _RoundedLinear(torch.autograd.Function):
    """`x` [...,I] by `weight` [O,I], both rounded, to [...,O]. The backward pass rounds again and keeps no copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scheme: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.scheme, ctx.has_bias = scheme, bias is not None
        # Products of eight-bit numbers are exact in bfloat16; on a CPU it would only cost digits of the sum.
        dtype = x.dtype if x.is_cuda else torch.float32
        (tokens, token_scales), (channels, channel_scales) = quantize(x, scheme), quantize(weight, scheme)
        sums = linear(tokens.to(dtype), channels.to(dtype)).float()
        found = sums * token_scales * channel_scales.squeeze(-1)
        return (found if bias is None else found + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ _rounded(weight, ctx.scheme)
        if ctx.needs_input_grad[1]:
            grad_weight = grad.flatten(0, -2).t() @ _rounded(x, ctx.scheme).flatten(0, -2)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = grad.flatten(0, -2).sum(0)
        return grad_x, grad_weight, grad_bias, None


def _rounded(values: Tensor, scheme: str) -> Tensor:
    """Return the values that are left after rounding, in their own type."""
    rounded, scales = quantize(values, scheme)
    return (rounded.float() * scales).to(values.dtype)


def quantize_forward(model: nn.Module, scheme: str) -> None:
    """Have the linear layers of a causal LM round as an engine with `engine.quantization` does.

    Raises `ConfigError` for a model with layers that such an engine has not.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
    others = [name for name in linears if not is_quantized(name)]
    experts = [name for name, _ in model.named_parameters() if ".experts." in name]
    if others or experts or not linears:
        raise ConfigError(
            f"engine.quantization: {type(model).__name__} has more than the layers {', '.join(sorted(LAYERS))} "
            f"({[*others, *experts, 'or none of them'][0]}), and only these are quantised; set it to 'off'"
        )
    for module in linears.values():
        module.forward = partial(_forward, module, scheme)  # type: ignore[method-assign]


def _forward(module: nn.Linear, scheme: str, x: Tensor) -> Tensor:
    return _RoundedLinear.apply(x, module.weight, module.bias, scheme)


class Quantized(ForwardChange):
    """Has a model's linear layers round by a scheme."""

    follows_records = False

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def apply(self, model: Any, path: str, text_alone: bool) -> None:
        """See `ForwardChange`."""
        if not text_alone:
            raise ConfigError(f"engine.quantization: must be off for {path}, a vision model")
        quantize_forward(model, self.scheme)


def quantizing(config: Config) -> Quantized:
    """Return the change of a run with quantised engines."""
    return Quantized(config.section(QuantizationConfig).quantization)
