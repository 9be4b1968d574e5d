"""What losses and corrections read and return.

All [B,T] tensors are aligned to the token being *predicted*: position t holds the log-probability, advantage,
version and mask bit of the same sampled token. Prompt, observation and padding positions have `mask` False;
their values are replaced by zero on construction, so that they cannot leak into anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.metrics import Metrics
from asyncrl.algo.ops import at_least_float32

TOKEN_FIELDS = (
    "logp",
    "proximal_logp",
    "behavior_logp",
    "advantages",
    "reference_logp",
    "entropy",
)
"""The [B,T] fields that masked positions are cleared of, and that must be finite on sampled tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch.

    Log-probabilities are at the sampling temperature; half precision is raised to float32.
    """

    logp: Tensor
    """[B,T] current policy; carries the gradient."""
    mask: Tensor
    """[B,T] bool, True on tokens the policy sampled."""
    advantages: Tensor | None = None
    """[B,T], never differentiated."""
    behavior_logp: Tensor | None = None
    """[B,T] as reported by the engine that sampled."""
    proximal_logp: Tensor | None = None
    """[B,T] center of the trust region. None lets the objective's proximal form supply it."""
    reference_logp: Tensor | None = None
    entropy: Tensor | None = None
    """[B,T] full-softmax entropy; carries the gradient when an entropy bonus is used."""
    versions: Tensor | None = None
    """[B,T] integer version that sampled the token, -1 elsewhere."""
    current_version: int = 0
    turn_ids: Tensor | None = None
    """[B,T] index of the turn a sampled token belongs to, -1 elsewhere."""
    scores: Tensor | None = None
    """[B] trajectory rewards."""
    group: Tensor | None = None
    """[B] integer prompt index, for pairwise losses."""
    own_rows: Tensor | None = None
    """[B] bool: the rows that this run has sampled, None for all. The others are trained alike, and diagnostics leave
    them out."""
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """[B,T] each, by name: what parts of the step and advantage estimators give beyond the fields, for the losses that
    read it. One that is computed by the current policy carries its gradient."""
    statistics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars of the step (`Objective.step_statistics`) and the optimizer step (`Objective.ratio_statistics`)."""

    def __post_init__(self) -> None:
        _check_shape("mask", self.mask, self.logp.shape)
        mask = self.mask.bool()
        object.__setattr__(self, "mask", mask)
        for name in TOKEN_FIELDS:
            x = getattr(self, name)
            if x is not None:
                _check_shape(name, x, self.logp.shape)
                object.__setattr__(self, name, torch.where(mask, at_least_float32(x), 0.0))
        for name, x in self.extras.items():
            _check_shape(name, x, self.logp.shape)
        cleared = {name: torch.where(mask, at_least_float32(x), 0.0) for name, x in self.extras.items()}
        object.__setattr__(self, "extras", cleared)
        if self.advantages is not None:
            object.__setattr__(self, "advantages", self.advantages.detach())
        for name in ("versions", "turn_ids"):
            x = getattr(self, name)
            if x is not None:
                _check_shape(name, x, self.logp.shape)
        for name in ("scores", "group", "own_rows"):
            x = getattr(self, name)
            if x is not None:
                _check_shape(name, x, self.logp.shape[:1])

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> LossInputs:
        """Return inputs of which each is the field of its name where there is one, and an extra where there is none."""
        known = {one.name for one in fields(cls)}
        extras = {name: x for name, x in named.items() if name not in known}
        return cls(**{name: x for name, x in named.items() if name in known}, extras=extras)

    def given(self, name: str) -> Tensor | None:
        """The field or extra `name`, None when it was not given."""
        return self.extras.get(name, getattr(self, name, None))

    def need(self, name: str) -> Tensor:
        """The field or extra `name`; ValueError that names it when it was not given."""
        x = self.given(name)
        if x is None:
            raise ValueError(f"this loss needs LossInputs.{name}, which is None")
        return x

    def check_finite(self) -> None:
        """`NonFiniteError` naming the first tensor and row with a NaN or infinity on a sampled token or as a score."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name in (*TOKEN_FIELDS, "scores")}
        check_finite({name: x for name, x in named.items() if x is not None} | dict(self.extras))

    @property
    def own(self) -> LossInputs:
        """These inputs with the rows masked out that this run has not sampled."""
        if self.own_rows is None:
            return self
        return replace(self, mask=self.mask & self.own_rows[:, None])

    @property
    def log_ratio(self) -> Tensor:
        """[B,T] `log r = logp - proximal_logp`."""
        return self.logp - self.need("proximal_logp").detach()

    @property
    def behavior_log_ratio(self) -> Tensor:
        """[B,T] `log r_b = logp - behavior_logp`."""
        return self.logp - self.need("behavior_logp").detach()

    @property
    def mismatch_log_ratio(self) -> Tensor:
        """[B,T] `log rho = proximal_logp - behavior_logp`, without gradient."""
        return (self.need("proximal_logp") - self.need("behavior_logp")).detach()


@dataclass(frozen=True, slots=True)
class LossOutputs:
    """What a loss returns before aggregation."""

    token_loss: Tensor
    """[B,T], zero where `mask` is False. A sequence-level loss repeats its value on the sequence's tokens."""
    metrics: Metrics = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Detached per-token [B,T] or per-sequence [B] quantities: `clipped`, `weight`, `keep`, ..."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over *all* micro-batches and ranks of one optimizer step.

    With them the sum of the aggregated micro-batch losses over micro-batches and ranks is exactly the loss of
    the whole batch. A trainer that averages gradients over ranks multiplies by the number of ranks.
    """

    num_tokens: float
    """Sampled tokens, counted before any rejection."""
    num_sequences: float
    """Sequences with at least one sampled token."""
    num_prompts: float = 0.0
    """Prompts (groups) with at least one such sequence."""
    horizon: float = 0.0
    """Fixed length of `seq_mean_token_sum_norm`, normally the longest completion the recipe allows."""
    num_rows: float = 0.0
    """All sequences, fully masked ones included."""
    prompt_tokens: Tensor | None = None
    """[P] sampled tokens of each prompt, indexed by a row's prompt index; only `prompt_mean` reads it."""


def totals_of(lengths: Tensor, group: Tensor | None = None, horizon: float = 0.0) -> Totals:
    """Counts of one whole batch: `lengths` [B] sampled tokens, `group` [B] prompt index of each row, from 0."""
    num_prompts, prompt_tokens = 0, None
    if group is not None and group.numel():
        prompt_tokens = torch.zeros(int(group.max()) + 1, dtype=lengths.dtype, device=lengths.device)
        prompt_tokens = prompt_tokens.index_add(0, group.long(), lengths)
        num_prompts = int((prompt_tokens > 0).sum())
    return Totals(
        int(lengths.sum()), int((lengths > 0).sum()), num_prompts, horizon, len(lengths), prompt_tokens
    )


class NonFiniteError(ValueError):
    """A tensor holds NaN or infinity."""

    def __init__(self, name: str, row: int, problem: str) -> None:
        super().__init__(f"{name} of row {row} {problem}")
        self.name = name
        self.row = row
        """The first row that does."""
        self.problem = problem


def positive_tokens(inputs: LossInputs) -> Tensor:
    """[B,T] bool, the sampled tokens of sequences with a positive score."""
    return inputs.mask & (inputs.need("scores") > 0).unsqueeze(-1)


def check_finite(tensors: dict[str, Tensor]) -> None:
    """`NonFiniteError` naming the first tensor [B] or [B,T] with a NaN or infinity, and its first such row.

    Costs one device synchronisation when all are finite.
    """
    if not tensors:
        return
    device = next(iter(tensors.values())).device
    bad = torch.stack([(~torch.isfinite(x)).any().to(device) for x in tensors.values()])
    if bool(bad.any()):
        name = list(tensors)[int(bad.nonzero()[0])]
        places = ~torch.isfinite(tensors[name])
        row = int(places.nonzero()[0, 0])
        where = " on sampled tokens" if places.ndim > 1 else ""
        count = int(places[row].sum())
        raise NonFiniteError(name, row, f"holds {count} NaN or infinite value(s){where}")


def _check_shape(name: str, x: Tensor, shape: torch.Size) -> None:
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {tuple(shape)}")
