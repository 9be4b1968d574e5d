"""A run at learning rate 0 trains nothing, so nothing may move: ratios, log-probabilities, weights, reward.

What moves nevertheless is a fault of the system and not of the recipe: engine and trainer disagree, stale or damaged
weights were published, a micro-batch depends on how the batch was cut, or the reward drifts with time. Pure, but for
`weights_of`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.tensorfile import tensors_in

SETTINGS = ("train.num_steps=10", "eval.tasks=0", "eval.every=0")
"""What such a run takes unless its user says otherwise."""
RATIO_LIMIT = {"float32": 1e-3, "bfloat16": 0.05}
"""How far a token's ratio may be from 1 by rounding, by the type of the weights."""
LOGP_LIMIT = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean absolute difference of log-probabilities, in nats, that rounding makes of engine and trainer."""
TREND_LEVEL = 0.01
"""The level of the test for a trend of the reward: so often a run without one is said to have one."""
LEAST_STEPS = 5
"""Steps without which a trend cannot be told."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that must hold."""

    what: str
    held: bool | None
    """None where the run has not measured it."""
    numbers: str


def verdicts(steps: Sequence[Mapping[str, Any]], dtype: str, changed: Sequence[str] | None) -> list[Verdict]:
    """Return what held in a run at learning rate 0.

    steps: its metrics. dtype: of the weights. changed: names of tensors of the last checkpoint that differ from the
    model it began with; None where there is nothing to compare.
    """
    return [_ratios(steps, dtype), _logprobs(steps, dtype), _weights(changed), _reward(steps)]


def _ratios(steps: Sequence[Mapping[str, Any]], dtype: str) -> Verdict:
    found = [step[name] for step in steps for name in ("ratio/min", "ratio/max") if name in step]
    if not found:
        return Verdict("ratios stay 1", None, "the objective has no ratio")
    worst = max(found, key=lambda ratio: abs(ratio - 1))
    limit = RATIO_LIMIT[dtype]
    return Verdict("ratios stay 1", abs(worst - 1) <= limit, f"farthest from 1: {worst:.6g}, limit {limit:g}")


def _logprobs(steps: Sequence[Mapping[str, Any]], dtype: str) -> Verdict:
    """Compare the trainer's log-probabilities with those under which engines sampled, of whatever version."""
    what = "log-probabilities stay as sampled"
    found = [step["mismatch/abs"] for step in steps if "mismatch/abs" in step]
    if not found:
        return Verdict(
            what, None, "the objective does not compute the policy's log-probabilities before the step"
        )
    limit = LOGP_LIMIT[dtype]
    return Verdict(what, max(found) <= limit, f"mean difference up to {max(found):.3g} nats, limit {limit:g}")


def _weights(changed: Sequence[str] | None) -> Verdict:
    if changed is None:
        return Verdict("weights unchanged", None, "there is no checkpoint whose tensors the model has, too")
    text = f"{len(changed)} tensors differ, such as {changed[0]}" if changed else "bit by bit"
    return Verdict("weights unchanged", not changed, text)


def _reward(steps: Sequence[Mapping[str, Any]]) -> Verdict:
    rewards = [step["reward/mean"] for step in steps if "reward/mean" in step]
    if len(rewards) < LEAST_STEPS:
        return Verdict("reward flat", None, f"{len(rewards)} steps are too few; {LEAST_STEPS} are needed")
    if len(set(rewards)) == 1:
        return Verdict("reward flat", True, f"{rewards[0]:.3f} in all {len(rewards)} steps")
    from scipy import stats  # not above: it takes a second to load

    trend = stats.linregress(range(len(rewards)), rewards)
    text = f"{trend.slope:+.4f} a step over {len(rewards)} steps, p = {trend.pvalue:.2g}"
    return Verdict("reward flat", bool(trend.pvalue >= TREND_LEVEL), text)


def changed_tensors(before: Mapping[str, str], after: Mapping[str, str]) -> list[str] | None:
    """Return the tensors that differ, of those that both have; None if there are none of these."""
    both = sorted(before.keys() & after.keys())
    return [name for name in both if before[name] != after[name]] if both else None


def weights_of(model: Path) -> dict[str, str]:
    """Return a digest of the type and the bytes of each tensor in a model's safetensors files."""
    found = {}
    for path in sorted(model.glob("*.safetensors")):
        tensors, data = tensors_in(path)
        with open(path, "rb") as file:
            for name, tensor in tensors.items():
                start, end = tensor["data_offsets"]
                file.seek(data + start)
                digest = hashlib.sha256(tensor["dtype"].encode())
                left = end - start
                while left:
                    piece = file.read(min(left, 2**24))
                    digest.update(piece)
                    left -= len(piece)
                found[name] = digest.hexdigest()
    return found
