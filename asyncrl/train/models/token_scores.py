"""Hidden states to log-probabilities, entropies and divergences of tokens, without keeping the logits.

At a vocabulary of 152,000 the logits of 16,384 tokens take 9.3 GiB in float32, and autograd would keep them. Here they
are computed a chunk at a time, and once more in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.algo.next_token import next_token_scores

CHUNK_LOGITS = 2**26
"""Logits held at once: 441 tokens at a vocabulary of 152,000, 256 MiB in float32."""
MOST_LOGITS = 2**28
"""The most of them where a GPU has room. Each chunk reads and writes the projection's gradient in float32, so that four
times as many logits are a quarter of that traffic; beyond this it is less than a tenth of the products."""
LOGITS_BYTES = 16
"""What a chunk takes for each of its logits at the peak: bfloat16, float32, their gradient and a copy."""
FREE_SHARE = 0.25
"""The share of what a GPU has free that a chunk may take: the backward pass needs the rest."""


AFTER_PROJECTION = ("logit_scale", "logits_scaling", "final_logit_softcapping")
"""Settings of transformers' models: a factor, a divisor, and the bound of a tanh."""
Projection = Callable[[Tensor], Tensor]
"""Hidden states [N,H] to logits [N,V]."""


Compare = Callable[[Tensor, Tensor, float], Tensor]
"""Logits [N,V] at a temperature, what stands beside each [N,H] and that temperature to a number [N] each."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the trained model's distributions are compared with, such as those of another model."""

    name: str
    """The name of what the comparison gives."""
    states: Tensor
    """[M,H] what stands beside each sampled token, row by row: the other model's hidden state before it."""
    compare: Compare

    def at(self, places: Tensor) -> Compared:
        """Return this for some of the sampled tokens [K]."""
        return replace(self, states=self.states[places])


class Head:
    """The forward pass of a vocabulary projection, which may also hand itself to a function that uses it often.

    ZeRO-3 gathers a module's weight when the module is called, on all ranks together, while their numbers of chunks
    differ: one call must do for all chunks, with their backward passes.
    """

    def __init__(self, module: nn.Module, config: Any) -> None:
        self.module = module
        self.config = config
        self.project: Projection = module.forward

    def __call__(self, states: Tensor, use: Callable[..., Any] | None = None) -> Any:
        if use is None:
            return self.project(states)
        return use(self.logits, [p for p in self.module.parameters() if p.requires_grad], states)

    @torch.no_grad()
    def copy(self) -> Head:
        """Return one with weights of its own. Under ZeRO-3, call it where the module is whole: in a `use` of a call."""
        module = self.module
        assert isinstance(module, nn.Linear)
        copy = nn.Linear(
            module.in_features, module.out_features, module.bias is not None, module.weight.device, module.weight.dtype
        )  # fmt: skip
        for mine, theirs in zip(copy.parameters(), module.parameters(), strict=True):
            mine.copy_(theirs).requires_grad_(False)
        return Head(copy, self.config)

    def logits(self, states: Tensor) -> Tensor:
        """Return logits [N,V] with what some models do after the projection: Cohere, Granite, Gemma."""
        logits = self.project(states)
        scale, divisor, cap = (getattr(self.config, name, None) for name in AFTER_PROJECTION)
        if scale is not None:
            logits = logits * scale
        if divisor is not None:
            logits = logits / divisor
        return logits if cap is None else cap * torch.tanh(logits / cap)


def score_tokens(
    labels: Tensor,
    vocab_size: int,
    temperature: float,
    want: tuple[str, ...],
    compared: Compared | None,
    project: Projection,
    parameters: list[nn.Parameter],
    states: Tensor,
) -> dict[str, Tensor]:
    """Return `logp` [N] of `labels` [N] after `states` [N,H], and what `want` names, as `PolicyModel.forward` does.

    compared: of the same tokens; project: the vocabulary projection with its `parameters`, as `Head` gives them.
    """
    names = ["logp", *(name for name in ("entropy", "sum_pi_squared") if name in want)]
    names += [compared.name] if compared is not None else []

    def score(states: Tensor, part: slice) -> tuple[Tensor, ...]:
        logits = tempered(project(states), temperature)
        scores = next_token_scores(logits, labels[part], "entropy" in want, "sum_pi_squared" in want)
        found = [value for value in scores if value is not None]
        if compared is not None:
            found.append(compared.compare(logits, compared.states[part], temperature))
        return tuple(found)

    size = max(1, logits_at_once(states.device) // vocab_size)
    parts = [slice(start, start + size) for start in range(0, max(1, len(states)), size)]
    # A single chunk is kept: computing it again would not lower the peak.
    found = score(states, parts[0]) if len(parts) == 1 else _Chunks.apply(score, parts, states, *parameters)
    return dict(zip(names, found, strict=True))


def logits_at_once(device: torch.device) -> int:
    """Return how many logits are held at once: `CHUNK_LOGITS`, or more where a GPU has room."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return CHUNK_LOGITS
    return chunk_for(free_bytes(device))


def chunk_for(free: int) -> int:
    """Return how many logits are held at once where a GPU has so many bytes free: a power of two."""
    wanted = int(FREE_SHARE * free / LOGITS_BYTES)
    return min(MOST_LOGITS, max(CHUNK_LOGITS, 1 << max(0, wanted.bit_length() - 1)))


def free_bytes(device: torch.device) -> int:
    """Return what may be allocated of a GPU: what nobody has, and what torch keeps of what was freed."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


class _Chunks(torch.autograd.Function):
    """`score(states[part], part)` for each of `parts`, joined; computed again in the backward pass.

    The projection's gradient is summed over the chunks in float32: in bfloat16 each of them would cost digits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        score: Callable[[Tensor, slice], tuple[Tensor, ...]],
        parts: list[slice],
        states: Tensor,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, ...]:
        ctx.score, ctx.parts, ctx.parameters = score, parts, parameters
        ctx.save_for_backward(states)
        ctx.set_materialize_grads(False)
        found = [score(states[part], part) for part in parts]
        return tuple(torch.cat(values) for values in zip(*found, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (states,) = ctx.saved_tensors
        used = [number for number, grad in enumerate(grads) if grad is not None]
        above = [grad for grad in grads if grad is not None]
        grad_states = torch.empty_like(states)
        sums = [torch.zeros_like(p, dtype=torch.float32) for p in ctx.parameters]
        for part in ctx.parts:
            with torch.enable_grad():
                own = states[part].detach().requires_grad_()
                found = ctx.score(own, part)
            grad, *rest = torch.autograd.grad(
                [found[number] for number in used], [own, *ctx.parameters], [grad[part] for grad in above]
            )
            grad_states[part] = grad
            for total, one in zip(sums, rest, strict=True):
                total += one
        weights = (total.to(p.dtype) for total, p in zip(sums, ctx.parameters, strict=True))
        return None, None, grad_states, *weights


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Return logits [N,V] in float32 at a temperature."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature
