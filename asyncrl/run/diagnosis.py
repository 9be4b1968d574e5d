"""Why a run is slow, and why it does not learn: rules over what it has recorded, and those of extensions (`run_rules`).

Each rule is pure: it looks at the last steps and returns a finding with its numbers and the setting to change, or None.
The limits are meant to be clear of what healthy runs of the recipes show; what they say is a hint, not a proof.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asyncrl.extensions.table import rows
from asyncrl.run.idle_cause import idle_cause

Kind = Literal["slow", "not learning", "failing"]
WINDOW = 10
"""Steps that the rules look at."""
ZERO_SUM = 0.1
"""Mean rewards of steps with negative ones in them that stay closer to 0 are those of both sides of a game."""
LEAST = 5
"""Steps from which on a trend is judged."""
LONG_TROUBLE_S = 60.0
"""An engine that restarts serves nobody for less."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    rule: str
    kind: Kind
    what: str
    """What was measured, in a sentence with its numbers."""
    advice: str
    """What to change, with the keys."""


@dataclass(frozen=True)
class Observed:
    """What a run has recorded. Newest last."""

    steps: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    activity: Sequence[Mapping[str, Any]] = ()
    """Lines of activity.jsonl."""
    failures: Sequence[Mapping[str, Any]] = ()
    """Failed episodes by class: `failure`, `episodes`, `first`."""
    restarts: Sequence[Mapping[str, Any]] = ()

    def recent(self, name: str) -> list[float]:
        """Return the metric's values in the last `WINDOW` steps that have it."""
        return self.values(name)[-WINDOW:]

    def values(self, name: str) -> list[float]:
        """Return the metric's finite values of all steps that have it."""
        found = (step.get(name) for step in self.steps)
        return [float(v) for v in found if isinstance(v, int | float) and math.isfinite(v)]


Rule = Callable[[Observed], Finding | None]


def diagnose(observed: Observed) -> list[Finding]:
    """Return what the rules find, failures first."""
    found = [finding for rule in rules() if (finding := rule(observed)) is not None]
    order: tuple[Kind, ...] = ("failing", "not learning", "slow")
    return sorted(found, key=lambda finding: order.index(finding.kind))


def rules() -> list[Rule]:
    """Return all rules. One of an extension with the name of another takes its place."""
    named = {rule.__name__: rule for rule in RULES}
    return [*(named | {row.name: row.load() for row in rows("run_rules")}).values()]


def failed_episodes(run: Observed) -> Finding | None:
    """More than one episode in twenty fails through no fault of the policy."""
    lost = {one["failure"]: one["episodes"] for one in run.failures if one["failure"] != "agent"}
    played = max(run.values("buffer/episodes"), default=0.0)
    total = sum(lost.values())
    if not total or total < 0.05 * played:
        return None
    worst = max(lost, key=lambda name: lost[name])
    first = (
        next(str(one["first"]) for one in run.failures if one["failure"] == worst).strip().splitlines()[-1]
    )
    return Finding(
        "failed_episodes", "failing",
        f"{total} of {played:.0f} episodes failed, {lost[worst]} of them of class {worst}; the first: {first[:200]}",
        "see the logs of env and rollout-0; for slow steps raise env.step_timeout_s or lower env.max_sessions",
    )  # fmt: skip


def engine_troubles(run: Observed) -> Finding | None:
    """Workers say now that an engine answers with garbage, or has not served them for a while."""
    listed = run.activity[-1].get("engine_troubles", ()) if run.activity else ()
    listed = [one for one in listed if one["garbage"] or one["for_s"] >= LONG_TROUBLE_S]
    if not listed:
        return None
    worst = max(listed, key=lambda one: (one["garbage"], one["failures"]))
    does = "answers with garbage" if worst["garbage"] else "fails"
    return Finding(
        "engine_troubles", "failing",
        f"the engine at {worst['url']} {does}: {worst['failures']} requests or probes of a worker in "
        f"{worst['for_s']:.0f} s; the last: {worst['error'][:200]}",
        "see its log; end it, and the run starts its own engines again, or mend its machine",
    )  # fmt: skip


def restarts(run: Observed) -> Finding | None:
    """A process has died three times or more."""
    deaths = Counter(str(event["name"]) for event in run.restarts)
    if not deaths or deaths.most_common(1)[0][1] < 3:
        return None
    name, count = deaths.most_common(1)[0]
    last = next(event for event in reversed(run.restarts) if event["name"] == name)
    return Finding(
        "restarts", "failing",
        f"{name} was restarted {count} times; the last time: {last.get('reason') or last['why']}",
        f"see logs/{name}.log",
    )  # fmt: skip


def skipped_steps(run: Observed) -> Finding | None:
    """Steps were taken without the optimizer, or groups made the loss NaN."""
    recent = run.steps[-WINDOW:]
    skipped = [step for step in recent if step.get("skipped")]
    poisoned = sum(int(step.get("batch/poisoned") or 0) for step in recent)
    if not skipped and not poisoned:
        return None
    why = f"; the last: {skipped[-1]['skipped']}" if skipped else ""
    return Finding(
        "skipped_steps", "failing",
        f"of the last {len(recent)} steps {len(skipped)} were skipped, and {poisoned} groups gave a loss or gradient "
        f"that is not finite{why}",
        "asyncrl replay repeats a group of the run's poison/ folder; lower train.learning_rate, or set "
        "model.dtype = float32",
    )  # fmt: skip


def no_signal(run: Observed) -> Finding | None:
    """Most groups earn the same in all episodes, while there is something left to learn."""
    shares, rewards = run.recent("group/zero_variance_fraction"), run.recent("reward/mean")
    admitted, dropped = run.values("buffer/admitted"), run.values("buffer/dropped")
    share = max(_mean(shares), (dropped[-1] / admitted[-1]) if admitted and dropped and admitted[-1] else 0.0)
    if len(shares) < LEAST or share < 0.6 or _mean(run.recent("success/mean") or rewards) > 0.9:
        return None
    hard = _mean(run.recent("success/mean") or rewards) < 0.5
    return Finding(
        "no_signal", "not learning",
        f"{share:.0%} of the groups carry no signal: all their episodes earned the same (mean reward "
        f"{_mean(rewards):.3f})",
        "the tasks are too hard: start from a better model, give easier tasks or partial rewards, or raise "
        "rollout.group_size"
        if hard else "the tasks are too easy: give harder ones in env.config, or raise rollout.temperature",
    )  # fmt: skip


def flat_reward(run: Observed) -> Finding | None:
    """The reward of the last steps does not differ from that of the first by more than chance."""
    rewards, spread = run.values("reward/mean"), run.values("reward/std")
    if len(rewards) < 2 * WINDOW or _mean(rewards[-WINDOW:]) > 0.9:
        return None
    if max(map(abs, rewards)) < ZERO_SUM and _mean(run.values("reward/min") or [0.0]) < -ZERO_SUM:
        # Those of the two sides of a game cancel out, whatever is learned.
        return None
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    counts = run.values("batch/sequences") or [1.0]
    error = _mean(spread or [0.0]) / math.sqrt(max(1.0, _mean(counts) * WINDOW)) * math.sqrt(2)
    scatter = math.sqrt((_variance(first) + _variance(last)) / WINDOW)
    if abs(_mean(last) - _mean(first)) > 2 * max(error, scatter):
        return None
    return Finding(
        "flat_reward", "not learning",
        f"the reward of the last {WINDOW} steps ({_mean(last):.3f}) is that of the first ({_mean(first):.3f})",
        "raise train.learning_rate or the number of episodes in a step (buffer.groups_per_step, rollout.group_size); "
        "check in the trajectories that the reward says what you mean",
    )  # fmt: skip


def collapse(run: Observed) -> Finding | None:
    """The reward has fallen well below what it was."""
    rewards = run.values("reward/mean")
    if len(rewards) < 2 * LEAST:
        return None
    means = [_mean(rewards[i : i + LEAST]) for i in range(len(rewards) - LEAST + 1)]
    best, last = max(means), means[-1]
    if best - last < max(0.15, 0.3 * abs(best)):
        return None
    return Finding(
        "collapse", "not learning",
        f"the reward of the last {LEAST} steps is {last:.3f}; it was {best:.3f} around step "
        f"{run.steps[means.index(best) + LEAST // 2]['step']}",
        "go back to a checkpoint of that time (model.path); lower train.learning_rate or buffer.max_staleness, or "
        "choose an algo.preset that corrects for staleness",
    )  # fmt: skip


def entropy_collapse(run: Observed) -> Finding | None:
    """The policy is nearly deterministic although its reward is not high."""
    surprise = [math.log(v) for v in run.values("mismatch/perplexity_behavior") if v > 0]
    rewards = run.recent("success/mean") or run.recent("reward/mean")
    if len(surprise) < 2 * LEAST or not rewards or _mean(rewards) > 0.8:
        return None
    first, last = _mean(surprise[:LEAST]), _mean(surprise[-LEAST:])
    if last > 0.1 * first or last > 0.05:
        return None
    return Finding(
        "entropy_collapse", "not learning",
        f"sampled tokens surprise the policy by {last:.4f} nats each, {first:.4f} at the start: it hardly explores, at "
        f"a success of {_mean(rewards):.3f}",
        "raise algo.entropy_coef or rollout.temperature, use a preset with a higher upper clip (dapo), or lower "
        "train.learning_rate",
    )  # fmt: skip


def ratio_drift(run: Observed) -> Finding | None:
    """The policy moves far from the one that sampled: few samples carry the weight."""
    ess, clipped = run.recent("ess/sequence"), run.recent("clip_fraction")
    if len(ess) < LEAST or (_mean(ess) > 0.4 and _mean(clipped) < 0.3):
        return None
    return Finding(
        "ratio_drift", "not learning",
        f"the effective sample size is {_mean(ess):.2f} of the sequences, {_mean(clipped):.0%} of the tokens are "
        f"clipped, at a staleness of {_mean(run.recent('staleness/mean')):.2f}",
        "lower train.learning_rate or buffer.max_staleness, or set algo.lr_scaling.power = 0.5",
    )  # fmt: skip


def engine_mismatch(run: Observed) -> Finding | None:
    """Engine and trainer disagree about tokens that this very version sampled."""
    errors = run.recent("logprob_check/error")
    if not errors or _mean(errors) < 0.02:
        return None
    return Finding(
        "engine_mismatch", "not learning",
        f"engine and trainer differ by {_mean(errors):.3f} nats on the log-probabilities of the same weights",
        "use model.dtype = float32, an algo.corrections entry that truncates or masks (tis, icepop), and no engine "
        "quantisation",
    )  # fmt: skip


def truncated(run: Observed) -> Finding | None:
    """Many episodes end because a limit cut them."""
    shares = run.recent("length/truncated_fraction")
    if not shares or _mean(shares) < 0.2:
        return None
    return Finding(
        "truncated", "not learning", f"{_mean(shares):.0%} of the episodes were cut off",
        "raise rollout.max_tokens_per_turn, rollout.max_turns or engine.max_model_len; a cut episode earns what it had",
    )  # fmt: skip


def shrinking(run: Observed) -> Finding | None:
    """Answers have become much shorter without a gain."""
    lengths, rewards = run.values("buffer/trained_tokens_mean"), run.values("reward/mean")
    lengths = lengths or run.values("length/mean")
    if len(lengths) < 2 * LEAST or not rewards:
        return None
    first, last = _mean(lengths[:LEAST]), _mean(lengths[-LEAST:])
    if last > 0.4 * first or _mean(rewards[-LEAST:]) > _mean(rewards[:LEAST]) + 0.05:
        return None
    return Finding(
        "shrinking", "not learning",
        f"episodes have {last:.0f} tokens, {first:.0f} at the start, and the reward has not risen",
        "see in the trajectories whether short answers are rewarded; algo.aggregation decides how length weighs",
    )  # fmt: skip


def waiting_trainer(run: Observed) -> Finding | None:
    """The trainer waits for groups most of the time."""
    waited, trained = run.recent("time/wait_s")[1:], run.recent("time/train_s")[1:]
    total = sum(waited) + sum(trained) + sum(run.recent("time/publish_s")[1:])
    if len(waited) < LEAST or not total or sum(waited) < 0.5 * total:
        return None
    causes = _engine_causes(run.activity)
    causes_text = ", ".join(f"{cause} {share:.0%}" for cause, share in causes[:3])
    worst = causes[0][0] if causes else "decoding"
    return Finding(
        "waiting_trainer", "slow",
        f"the trainer waits for groups {sum(waited) / total:.0%} of the time"
        + (f"; engines: {causes_text}" if causes_text else ""),
        _FOR_CAUSE.get(worst, _FOR_CAUSE["decoding"]),
    )  # fmt: skip


_FOR_CAUSE = {
    "decoding": "generation is the bottleneck: raise engine.count or engine.max_num_seqs",
    "episodes wait for their environments": "environments are the bottleneck: raise rollout.groups_in_flight, "
    "env.processes or buffer.max_staleness, so that more episodes are played at once",
    "the staleness limit admits no group": "raise buffer.max_staleness, choose train.schedule = partial, or set "
    "buffer.over_provision = all, with which tokens are older",
    "no worker asks": "raise rollout.workers or rollout.groups_in_flight",
    "weights are swapped": "publishing is slow: see engine.weight_transfer",
}


def slow_publish(run: Observed) -> Finding | None:
    """The trainer stands still for a large part of a step while weights are brought to the engines."""
    parts = [run.recent(f"time/{part}_s")[1:] for part in ("wait", "train", "publish")]
    total, publish = sum(map(sum, parts)), sum(parts[2])
    if len(parts[2]) < LEAST or not total or publish < 0.2 * total:
        return None
    return Finding(
        "slow_publish", "slow", f"publishing weights takes {publish / total:.0%} of a step, {_mean(parts[2]):.1f} s",
        "see engine.weight_transfer; train more on each version with more groups in a step (buffer.groups_per_step)",
    )  # fmt: skip


def full_cache(run: Observed) -> Finding | None:
    """Requests wait in an engine whose KV cache is full."""
    states = [state for sample in run.activity[-60:] for state in sample.get("engines", {}).values()]
    full = [state for state in states if state.get("kv_usage", 0) > 0.9 and state.get("waiting", 0)]
    if len(states) < 10 or len(full) < 0.3 * len(states):
        return None
    return Finding(
        "full_cache", "slow", f"requests wait for a full KV cache in {len(full) / len(states):.0%} of the samples",
        "raise engine.gpu_memory_utilization (on a CPU the variable VLLM_CPU_KVCACHE_SPACE), or lower "
        "rollout.groups_in_flight",
    )  # fmt: skip


def loaded_machine(run: Observed) -> Finding | None:
    """Something else uses the machine's processors."""
    samples = [sample for sample in run.activity[-60:] if sample.get("processes")]
    if len(samples) < 10:
        return None
    load = _mean([sample["cpu"] for sample in samples])
    own = _mean([sum(sample["processes"].values()) for sample in samples])
    cores = _mean([sample.get("cores", 0) for sample in samples])
    if load < 0.9 or not cores or own > 0.7 * cores:
        return None
    return Finding(
        "loaded_machine", "slow",
        f"the machine's {cores:.0f} cores are {load:.0%} busy, {own:.1f} of them with this run",
        "end what else runs there; set run.threads, so that engine and trainer do not fight for cores",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    failed_episodes, engine_troubles, restarts, skipped_steps, collapse, no_signal, flat_reward,
    entropy_collapse, ratio_drift, engine_mismatch, truncated, shrinking, waiting_trainer, slow_publish, full_cache,
    loaded_machine,
)  # fmt: skip


def _engine_causes(samples: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return what the engines did with the share of the samples, the most frequent first."""
    causes = Counter(
        idle_cause(state, sample.get("buffer", {})) or "decoding"
        for sample in samples
        for state in sample.get("engines", {}).values()
    )
    return [(cause, count / causes.total()) for cause, count in causes.most_common()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
