"""Notice that a run collapses, and say what to do: lower the learning rate, or also go back to the last good policy.

Of each step it is given the mean rewards of the fresh groups, how far the policy had moved from those that sampled them
(the mean k3 estimate of the KL divergence per token) and how surprised these were by their own tokens (their mean
negative log-probability, an estimate of the entropy). Rewards are pooled over the groups of the last 4 steps, and of 8,
or of as many as there are, but at least 3:

    m = mean over the n groups of a window
    s^2 = max(their variance, the running mean of the variance within a step) / n           n - 1 in the variances
    best = window of 8 steps with the highest m so far,  last = the newest 4 steps

    fall        best.m - last.m > z sqrt(best.s^2 + last.s^2)  and  > least_fall |best.m|        -> go back
                z = `z`, or `z_moved` where drift or surprise say that the policy has changed
    moved       mean k3 of `last` > drift_limit, or its mean surprise more than `surprise_factor` times that of the best
                window, or less than 1 / `surprise_factor` of it
    slow down   k3 of each of the last two steps > drift_limit

Both halve the learning rate, down to `least_scale` of the scheduled one, and nothing raises it again. The standard
errors are those of groups, so tasks of unequal difficulty widen them. Windows overlap and the best is the highest of
many, which is why `z` is larger than a single comparison would need; `docs/algorithms/asynchrony-control.md` has what
the constants were chosen by. The guard is this project's own, not from a publication. Torch-free; the state is a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Action = Literal["", "slow_down", "go_back"]


@dataclass(frozen=True, slots=True)
class GuardRule:
    """The constants. See the module."""

    last_steps: int = 4
    best_steps: int = 8
    least_steps: int = 3
    z: float = 4.5
    z_moved: float = 3.0
    least_fall: float = 0.3
    drift_limit: float = 0.15
    """Nats a token."""
    surprise_factor: float = 2.0
    factor: float = 0.5
    """What the rate is multiplied with when the guard acts."""
    least_scale: float = 0.0625
    """Below it the guard no longer acts: what goes wrong then is not the rate."""


@dataclass(frozen=True, slots=True)
class StepSignals:
    """What the guard is told of a step."""

    version: int
    """At the start of the step."""
    sampled_version: int
    """The mean version of the step's tokens, rounded down: the policy whose rewards these are."""
    groups: int
    mean: float
    """The mean of the groups' mean rewards."""
    squares: float
    """Sum of their squared deviations from `mean`."""
    drift: float
    surprise: float

    @classmethod
    def of(
        cls, version: int, sampled_version: int, rewards: Sequence[float], drift: float, surprise: float
    ) -> StepSignals:
        """Return the signals of a step from the mean rewards of its groups, at least one."""
        mean = sum(rewards) / len(rewards)
        squares = sum((reward - mean) ** 2 for reward in rewards)
        return cls(version, sampled_version, len(rewards), mean, squares, drift, surprise)


@dataclass(frozen=True, slots=True)
class Window:
    """Steps pooled."""

    mean: float
    variance: float
    """The variance of the mean: the square of its standard error."""
    drift: float
    surprise: float

    @classmethod
    def of(cls, steps: Sequence[StepSignals], spread: float) -> Window:
        """Pool steps. spread: the least that is taken for the variance of a group's reward."""
        n = sum(step.groups for step in steps)
        mean = sum(step.groups * step.mean for step in steps) / n
        squares = sum(step.squares + step.groups * (step.mean - mean) ** 2 for step in steps)
        variance = max(squares / max(n - 1, 1), spread) / n
        return cls(
            mean,
            variance,
            sum(step.drift for step in steps) / len(steps),
            sum(step.surprise for step in steps) / len(steps),
        )


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the guard remembers between steps."""

    recent: tuple[StepSignals, ...] = ()
    """The newest steps since the last fall, at most `best_steps`."""
    spread: float = 0.0
    """Running mean of the variance of groups' rewards within a step."""
    steps: int = 0
    """How many steps that mean is over."""
    best: Window | None = None
    good_version: int = -1
    """The newest version whose rewards were not below the best by more than chance; -1 for none yet."""
    scale: float = 1.0
    """The factor of the scheduled learning rate."""
    rest: int = 0
    """Steps to come whose drift is that of before it last acted, by the lag of the groups then."""
    given_up: tuple[tuple[int, int], ...] = ()
    """Pairs (a, b) of versions: those after a up to b are of policies that were given up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the guard has decided after a step."""

    action: Action
    why: str
    """With the numbers; "" without an action."""
    version: int = -1
    """To go back to."""


QUIET = Verdict("", "")


def judge(
    state: GuardState,
    step: StepSignals,
    checkpoints: Sequence[int] = (),
    rule: GuardRule = GuardRule(),
) -> tuple[GuardState, Verdict]:
    """Return the state after a step, and what to do.

    checkpoints: versions that can be gone back to; without a good one among them the rate is lowered all the same.
    """
    resting = state.rest > 0
    state = replace(state, rest=max(state.rest - 1, 0))
    lag = step.version - step.sampled_version
    recent = (*state.recent, step)[-rule.best_steps :]
    state = _count(replace(state, recent=recent), step, rule)
    if len(recent) >= rule.least_steps:
        window, last = (Window.of(recent[-n:], state.spread) for n in (rule.best_steps, rule.last_steps))
        best = window if state.best is None or window.mean >= state.best.mean else state.best
        state = replace(state, best=best)
        if why := _fall(best, last, rule):
            good = good_checkpoint(state, checkpoints)
            if good is not None:
                given_up = (*state.given_up, (good, step.version))
                # What was sampled before is not trained any more.
                state = replace(state, given_up=given_up)
                return _act(state, (), 0, rule, Verdict("go_back", why, good))
            # The present is what later rewards are compared with, or one fall would lower the rate again and again.
            state = replace(state, best=None)
            return _act(state, (), lag, rule, Verdict("slow_down", why))
        if best.mean - last.mean <= math.sqrt(best.variance + last.variance):
            state = replace(state, good_version=max(state.good_version, step.sampled_version))
    drifts = [one.drift for one in recent[-2:]]
    if not resting and len(drifts) == 2 and min(drifts) > rule.drift_limit:
        why = (
            f"the policy was {drifts[0]:.2f} and {drifts[1]:.2f} nats a token away from those that sampled, "
            f"more than {rule.drift_limit:g}"
        )
        return _act(state, recent, lag, rule, Verdict("slow_down", why))
    return state, QUIET


def good_checkpoint(state: GuardState, versions: Sequence[int]) -> int | None:
    """Return the newest of these versions whose policy is known to be good; None without one."""
    good = [
        version
        for version in versions
        if version <= state.good_version and not any(a < version <= b for a, b in state.given_up)
    ]
    return max(good, default=None)


def _count(state: GuardState, step: StepSignals, rule: GuardRule) -> GuardState:
    if step.groups < 2:
        return state
    steps = state.steps + 1
    share = max(1 / steps, 1 / (4 * rule.best_steps))
    variance = step.squares / (step.groups - 1)
    return replace(state, steps=steps, spread=state.spread + share * (variance - state.spread))


def _fall(best: Window, last: Window, rule: GuardRule) -> str:
    """Return how the reward has fallen; "" where it has not by more than chance."""
    fall, error = best.mean - last.mean, math.sqrt(best.variance + last.variance)
    moved = _moved(best, last, rule)
    if fall <= (rule.z_moved if moved else rule.z) * error or fall <= rule.least_fall * abs(best.mean):
        return ""
    why = f"fresh groups earn {last.mean:.3f}, at best it was {best.mean:.3f} (standard error {error:.3f})"
    return f"{why}, and {moved}" if moved else why


def _moved(best: Window, last: Window, rule: GuardRule) -> str:
    """Return how the policy has changed since its best window; "" where it has not much."""
    if last.drift > rule.drift_limit:
        return f"the policy was {last.drift:.2f} nats a token away from those that sampled"
    low, high = best.surprise / rule.surprise_factor, best.surprise * rule.surprise_factor
    if not low <= last.surprise <= high:
        return f"its surprise at its own tokens is {last.surprise:.2f} nats, {best.surprise:.2f} then"
    return ""


def _act(
    state: GuardState, recent: tuple[StepSignals, ...], rest: int, rule: GuardRule, verdict: Verdict
) -> tuple[GuardState, Verdict]:
    if state.scale <= rule.least_scale:
        return state, QUIET
    scale = max(state.scale * rule.factor, rule.least_scale)
    return replace(state, recent=recent, scale=scale, rest=rest), verdict


def state_of(values: Mapping[str, Any]) -> GuardState:
    """Return the state of which `dataclasses.asdict` has made plain values, as a checkpoint gives them back."""
    recent = tuple(StepSignals(**step) for step in values["recent"])
    best = None if values["best"] is None else Window(**values["best"])
    given_up = tuple((a, b) for a, b in values["given_up"])
    return GuardState(**{**values, "recent": recent, "best": best, "given_up": given_up})


NAME = "guard"
"""The name of the guard's state among a checkpoint's callbacks."""


def saved_scale(states: Mapping[str, Any]) -> float:
    """Return by what the guard of a checkpoint's callbacks multiplies the learning rate. states: by their names."""
    saved = states.get(NAME)
    return state_of(json.loads(saved["state"])).scale if saved is not None else 1.0
