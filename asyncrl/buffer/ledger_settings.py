"""The settings of a ledger, with their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.buffer.staleness import NEVER, EarlyEnd, capacity
from asyncrl.buffer.token_budget import TokenBudget
from asyncrl.config import Config
from asyncrl.errors import ConfigError

LEAST_LIFE_S = 3600.0
LIFE_EPISODES = 24
"""As often may an episode of a group reach its time limit, one after the other, with all that is explored, branched
and played again, before its lease has lived too long."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """`max_tokens` is of one trajectory. Raises `ConfigError` for values out of range."""

    groups_per_step: int
    max_staleness: int
    group_size: int
    lease_s: float = 120.0
    """How long a lease lives without being renewed."""
    lease_life_s: float = 86_400.0
    """How long it lives at most, however often it is renewed. Its worker is then quarantined."""
    max_attempts: int = 3
    """Leases a task may lose before it fails for good."""
    drop_no_signal: bool = True
    compared: frozenset[str] = frozenset({"rewards"})
    """What the episodes of a group agree in where the group has no signal, see `algo.settings.compared`."""
    max_tokens: int = 2**24
    over_provision: int | Literal["auto"] | None = None
    """Groups admitted beyond one step's; None for as many as the staleness limit allows, "auto" for a number that
    follows the trainer and the measured throughput (`automatic_admission.AutomaticAdmission`)."""
    recycle: bool = True
    """Whether groups that are unfinished at a commit are continued; otherwise their tasks start over."""
    token_budget: int = 0
    """Sampled tokens with which a step is complete before it has `groups_per_step` groups; 0 for none."""
    vocab_size: int = 0
    """Token ids must lie below it; 0 where the model does not say."""

    def __post_init__(self) -> None:
        least = {
            "groups_per_step": 1,
            "max_staleness": 0,
            "group_size": 1,
            "max_attempts": 1,
            "max_tokens": 1,
            "token_budget": 0,
            "vocab_size": 0,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if isinstance(self.over_provision, int) and self.over_provision < 0:
            raise ConfigError(f"over_provision must be at least 0, got {self.over_provision}")
        for name in ("lease_s", "lease_life_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0 seconds, got {getattr(self, name)}")

    @classmethod
    def of(cls, config: Config, vocab_size: int = 0) -> LedgerSettings:
        """Return the settings of a recipe. vocab_size: of the model, 0 where it is not known."""
        return cls(
            groups_per_step=config.buffer.groups_per_step,
            max_staleness=config.buffer.max_staleness,
            group_size=config.rollout.group_size,
            lease_s=config.rollout.lease_s,
            lease_life_s=max(LEAST_LIFE_S, LIFE_EPISODES * config.rollout.episode_timeout_s),
            drop_no_signal=bool(config.no_signal),
            compared=config.no_signal,
            max_tokens=config.max_tokens,
            over_provision=None if config.buffer.over_provision == "all" else config.buffer.over_provision,
            recycle=config.buffer.recycle,
            token_budget=config.buffer.token_budget,
            vocab_size=vocab_size,
        )

    @property
    def no_signal(self) -> frozenset[str]:
        """What the episodes of a group that is dropped for want of a signal agree in; empty where none is dropped."""
        return self.compared if self.drop_no_signal else frozenset()

    @property
    def early_end(self) -> EarlyEnd:
        """When a step is complete with fewer groups than `groups_per_step`."""
        return TokenBudget(self.token_budget) if self.token_budget else NEVER

    @property
    def max_over_provision(self) -> int:
        """Groups beyond one step's that `max_staleness` allows."""
        return self.max_staleness * self.groups_per_step

    def slots(self, staleness_limit: int, automatic: int) -> int:
        """Return how many groups may be admitted and untrained under a staleness limit.

        automatic: the over-provision in force for "auto".
        """
        fixed = self.over_provision
        return capacity(staleness_limit, self.groups_per_step, automatic if fixed == "auto" else fixed)
