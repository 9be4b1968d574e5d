"""What advantage estimators read: one optimizer step's whole batch, before it is cut into micro-batches.

The first data-parallel rank has the rows of all ranks and computes their advantages; then each gets those of its own
rows. Group and batch statistics therefore never depend on the split.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.inputs import check_finite
from asyncrl.algo.metrics import Metrics
from asyncrl.algo.ops import at_least_float32
from asyncrl.errors import ConfigError

TOKEN_FIELDS = (
    "values",
    "old_logp",
    "behavior_logp",
    "reference_logp",
    "entropy",
    "sum_pi_squared",
    "token_penalty",
)


class MissingInputError(ConfigError, ValueError):
    """The estimator reads an input that this run does not provide: it needs another environment or estimator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageBatch:
    """B sequences. Only the fields an estimator declares with `@needs` must be given."""

    rewards: Tensor
    """[B] trajectory rewards."""
    group: Tensor
    """[B] integer index of the prompt."""
    mask: Tensor
    """[B,T] bool, True on sampled tokens."""
    current_version: int = 0
    """The version of the policy that is trained, for schedules."""
    turn_ids: Tensor | None = None
    """[B,T] index of the sampled turn a token belongs to, -1 elsewhere."""
    turn_rewards: list[list[float]] | None = None
    """Reward of each turn of each sequence; the same turns as in `turn_ids`."""
    observation_ids: list[list[str]] | None = None
    """Identity of the observation each turn answered."""
    answer_probability: Tensor | None = None
    """[B,K] how likely the policy gives the right answer before each turn; NaN where a row has no such turn."""
    turn_matches: list[list[bool]] | None = None
    """Whether each turn's action agreed with the recorded one (UI-S1)."""
    components: dict[str, Tensor] = field(default_factory=dict)
    """[B] named reward components; NaN where a component is absent."""
    agents: list[str] | None = None
    """Agent that produced each sequence (multi-agent)."""
    rollouts: list[str] | None = None
    """Rollout each sequence belongs to (multi-agent); by default every sequence is its own."""
    branches: list[tuple[str, str, int]] | None = None
    """Each sequence's name, that of the one it branches off ("" for none), and the turn before which it does."""
    hint_turns: list[int] | None = None
    """How many turns of an expert's hint each sequence began with, 0 without one."""
    truncated: Tensor | None = None
    """[B] bool, True where a limit ended the episode."""
    values: Tensor | None = None
    """[B,T] critic at the state before each token."""
    bootstrap_values: Tensor | None = None
    """[B] critic after the last token, used where `truncated`."""
    old_logp: Tensor | None = None
    """[B,T] proximal policy."""
    behavior_logp: Tensor | None = None
    reference_logp: Tensor | None = None
    entropy: Tensor | None = None
    """[B,T] full-softmax entropy under the proximal policy."""
    sum_pi_squared: Tensor | None = None
    """[B,T] sum over the vocabulary of squared probabilities."""
    greedy_rewards: Tensor | None = None
    """[B] reward of a greedy rollout of the same prompt (ReMax)."""
    baselines: Tensor | None = None
    """[B] per-prompt baseline from a tracker (SPO)."""
    role_baselines: Tensor | None = None
    """[B] running mean of the returns of the row's role in its environment (SPIRAL)."""
    score_norms: Tensor | None = None
    """[B] norm of the gradient of each trajectory's log-probability (VCPO)."""
    token_penalty: Tensor | None = None
    """[B,T] subtracted from token rewards, as KL in the reward is."""

    def __post_init__(self) -> None:
        rows = self.mask.shape[0]
        for name in (
            "rewards",
            "group",
            "truncated",
            "bootstrap_values",
            "greedy_rewards",
            "baselines",
            "role_baselines",
            "score_norms",
        ):
            _check_rows(name, getattr(self, name), rows)
        for name, x in self.components.items():
            _check_rows(f"components[{name!r}]", x, rows)
        for name in (
            "turn_rewards",
            "observation_ids",
            "turn_matches",
            "agents",
            "rollouts",
            "branches",
            "hint_turns",
        ):
            x = getattr(self, name)
            if x is not None and len(x) != rows:
                raise ValueError(f"{name} has {len(x)} rows, expected {rows}")
        if self.answer_probability is not None and self.answer_probability.shape[:1] != (rows,):
            raise ValueError(f"answer_probability has {len(self.answer_probability)} rows, expected {rows}")
        object.__setattr__(self, "mask", self.mask.bool())
        object.__setattr__(self, "rewards", at_least_float32(self.rewards))
        check_finite({"rewards": self.rewards})
        for name in TOKEN_FIELDS:
            x = getattr(self, name)
            if x is None:
                continue
            if x.shape != self.mask.shape:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {tuple(self.mask.shape)}")
            object.__setattr__(self, name, torch.where(self.mask, at_least_float32(x), 0.0))

    def need(self, name: str) -> Any:
        """The field `name`; `MissingInputError` that names it when it was not given."""
        x = getattr(self, name)
        if x is None:
            raise MissingInputError(
                f"algo.advantage: this estimator needs AdvantageBatch.{name}, which is None: neither the environment "
                "nor the run gives it"
            )
        return x

    @property
    def lengths(self) -> Tensor:
        """[B] number of sampled tokens."""
        return self.mask.sum(-1)

    @property
    def returns(self) -> Tensor:
        """[B] trajectory reward after any per-token penalty."""
        return self.rewards if self.token_penalty is None else self.rewards - self.token_penalty.sum(-1)

    def token_rewards(self) -> Tensor:
        """[B,T] rewards on the last sampled token of each turn.

        Whatever the turn rewards do not add up to (an outcome reward, shaping) is placed on the sequence's
        last sampled token, so the rows sum to `returns`. Rewards never land on a masked token, where they
        would be lost.
        """
        rewards = torch.zeros_like(self.mask, dtype=self.rewards.dtype)
        rest = self.rewards.clone()
        if self.turn_rewards is not None and self.turn_ids is not None:
            for row, turns in enumerate(self.turn_rewards):
                for turn, reward in enumerate(turns):
                    positions = (self.turn_ids[row] == turn).nonzero()
                    if reward and len(positions):
                        rewards[row, positions[-1, 0]] += reward
                        rest[row] -= reward
        last = last_token(self.mask)
        live = self.mask.any(-1)
        rewards[live, last[live]] += rest[live]
        return rewards if self.token_penalty is None else rewards - self.token_penalty


def last_token(mask: Tensor) -> Tensor:
    """[B] position of the last True of each row, 0 for empty rows."""
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return torch.where(mask, positions, 0).amax(-1)


@dataclass(frozen=True, slots=True)
class AdvantageOutputs:
    """What an estimator returns; one that only has advantages may return the [B,T] tensor itself."""

    advantages: Tensor
    """[B,T], zero where `mask` is False."""
    returns: Tensor | None = None
    """[B,T] critic targets."""
    keep: Tensor | None = None
    """[B] bool, False for rows that must leave the batch (MC-GRPO's pivot)."""
    clip_scale: Tensor | None = None
    """[B,T] factor on the width of the loss's trust region (A2TGPO)."""
    metrics: Metrics = field(default_factory=dict)


def _check_rows(name: str, x: Tensor | None, rows: int) -> None:
    if x is not None and x.shape != (rows,):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected ({rows},)")
