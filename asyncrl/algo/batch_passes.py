"""Which passes over the whole batch a step takes before its first optimizer step, as its objective needs them.

Decided from settings alone, without torch: the trainer takes these passes, and a planned run pays for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.algo.settings import averages_the_proximal, measured_needs, needed, part_needs


@dataclass(frozen=True, slots=True)
class BatchPasses:
    """The passes of one step."""

    policy: bool
    """The policy's own log-probabilities before the first optimizer step."""
    extras: tuple[str, ...]
    """Further [B,T] quantities of that pass."""
    values: bool
    """Those of a critic: with a shared trunk in the policy's pass, else in one of the critic's."""
    score_norms: bool
    """A pass backward through each trajectory."""
    answers: bool
    """How likely the right answer is before each turn."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], num_minibatches: int) -> BatchPasses:
        """Return what a resolved `algo` section needs when a batch is trained in `num_minibatches` optimizer steps."""
        needs = needed(settings)
        words = part_needs("advantage", settings["advantage"]) | measured_needs(settings)
        extras = tuple(name for name in ("entropy", "sum_pi_squared") if name in words)
        # A second optimizer step moves away from where the batch began, unless what it is compared with is an average.
        moves = num_minibatches > 1 and not averages_the_proximal(needs)
        kl_in_reward = settings["kl"]["where"] == "reward" and "reference" in needs
        policy = bool(
            extras
            or words & {"proximal", "baselines", "values"}
            or moves
            or "step_statistics" in needs
            or settings["denominator"] == "kept"
            or settings["lr_scaling"]["power"]
            or kl_in_reward
        )
        return cls(
            policy=policy,
            extras=extras,
            values="values" in needs,
            score_norms="score_norms" in words,
            answers="answers" in words,
        )
