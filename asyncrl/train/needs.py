"""Which passes over the batch an objective's step takes, read off its parts."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.algo import signature
from asyncrl.algo.objective import Objective
from asyncrl.train.critic import Critic


@dataclass(frozen=True, slots=True)
class Needs:
    """One step's needs."""

    policy_pass: bool
    """The policy's own log-probabilities before the first optimizer step."""
    extras: tuple[str, ...]
    """Further [B,T] quantities of that pass."""
    values: bool
    score_norms: bool

    @classmethod
    def of(cls, objective: Objective, num_minibatches: int) -> Needs:
        """Return what `objective` needs when a batch is trained in `num_minibatches` optimizer steps."""
        advantage = objective.settings["advantage"]
        found = signature.read("advantage", advantage["name"])
        words = set(found.needs) if found is not None else set()
        if advantage["name"] == "vcpo" and advantage.get("score") == "logit":
            words.add("sum_pi_squared")
        extras = tuple(name for name in ("entropy", "sum_pi_squared") if name in words)
        kl_in_reward = objective.settings["kl"]["where"] == "reward" and objective.needs_reference
        policy_pass = bool(
            extras
            or words & {"proximal", "baselines", "values"}
            or num_minibatches > 1
            or objective.needs_batch_statistics
            or objective.shrinks_denominator
            or objective.settings["lr_scaling"]["power"]
            or kl_in_reward
        )
        return cls(
            policy_pass=policy_pass,
            extras=extras,
            values=objective.needs_values,
            score_norms=advantage["name"] == "vcpo" and advantage.get("score") == "gradient",
        )

    def shared_values(self, critic: Critic | None) -> bool:
        """True when the policy's pass also gives the values."""
        return self.values and critic is not None and critic.shared
