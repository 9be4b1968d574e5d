"""Putting finished groups: what was leased, once, fresh enough, and fit to train on.

A group that passes the checks becomes ready, is dropped with a reason, or sends its task back for another attempt.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from asyncrl.algo.curation.signal import differ
from asyncrl.buffer.body_files import FileBody
from asyncrl.buffer.failures import note_failures
from asyncrl.buffer.leases import Leases
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store
from asyncrl.data.codec import decode_task, encode_group
from asyncrl.data.token_extras.table import token_ids_of
from asyncrl.data.trajectory_info import info_token_ids
from asyncrl.errors import InputError, StaleError
from asyncrl.types import MAX_REWARD, NOT_SAMPLED, FailureClass, Group, Task, Trajectory


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a group: `outcome` is "ready", "dropped", "retried" or "failed"."""

    outcome: str
    reason: str = ""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a group is trained on (`ready`), `dropped`, or its task is to be tried again (`retry`)."""

    outcome: Literal["ready", "dropped", "retry"]
    reason: str = ""
    failure: str = ""
    """Class of failure, for "retry"."""
    usable: int = 0
    reward_sum: float = 0.0
    """Over usable episodes."""
    tokens: int = 0
    """Sampled tokens of all episodes."""


def admit(
    group: Group,
    group_size: int,
    no_signal: Collection[str],
    max_tokens: int,
    kept: bool = False,
) -> Admission:
    """Decide what becomes of a group. Pure.

    If too few episodes are usable because the environment or the infrastructure failed the others, the task is tried
    again: the group says nothing about it. A group is dropped when too few episodes are usable for any other reason,
    when an episode is longer than `max_tokens`, and when all siblings agree in what `no_signal` names, unless that is
    empty or the group must be `kept`.
    """
    usable = group.usable
    reward_sum = float(sum(t.reward for t in usable))
    tokens = sum(t.num_sampled for t in group.trajectories)

    def decided(
        outcome: Literal["ready", "dropped", "retry"], reason: str = "", failure: str = ""
    ) -> Admission:
        return Admission(outcome, reason, failure, len(usable), reward_sum, tokens)

    if len({t.rollout for t in usable}) < min(2, group_size):
        lost = [t for t in group.trajectories if t.failure not in (None, FailureClass.AGENT)]
        if lost:
            return decided("retry", lost[0].error, str(lost[0].failure))
        return decided("dropped", "too_few_usable")
    if any(t.num_tokens > max_tokens for t in usable):
        return decided("dropped", "too_long")
    alike = bool(no_signal) and group_size > 1 and not differ(usable, no_signal)
    if alike and not kept:
        return decided("dropped", "no_signal")
    return decided("ready")


MOST_DROPPED_BATCHES = 4
"""Groups without a signal that are dropped for one step, as a multiple of its groups. Further ones are trained, with no
gradient: a policy that solves all of its tasks, or none, would otherwise never have another batch."""


class Puts:
    """Accepts groups. Every method runs inside a transaction of its caller."""

    def __init__(self, store: Store, settings: LedgerSettings, leases: Leases) -> None:
        self.store = store
        self.settings = settings
        self.leases = leases
        self.bodies = leases.bodies

    def put(self, group: Group, body: bytes | None, staged: FileBody | None) -> PutResult:
        s = self.settings
        seq, task, state, version, due, attempts, reason = self.leases.find(
            group.id, "seq, body, state, version, deadline, attempts, reason"
        )
        if state != "leased":
            outcome = state if state in ("dropped", "failed") else "ready"
            return PutResult(outcome, reason or "", duplicate=True)
        size = self.leases.terms(seq).group_size
        oldest, newest = self._check(group, decode_task(task), version, size)
        kept = self.leases.hooks.keeps(seq, due, group)
        admission = admit(group, size, self._no_signal(), s.max_tokens, kept)
        if admission.reason == "no_signal":
            self.store.set_fact("no_signal", self.store.fact("no_signal") + 1)
        note_failures(self.store, group, admission.failure)
        # A group that is tried again stays leased until `lose` decides.
        state = "leased" if admission.outcome == "retry" else admission.outcome
        self.store.execute(
            "UPDATE tasks SET state = ?, reason = ?, usable = ?, reward_sum = ?, tokens = tokens + ?, oldest = ?, "
            "newest = ? WHERE seq = ?",
            (
                state,
                admission.reason,
                admission.usable,
                admission.reward_sum,
                admission.tokens,
                oldest,
                newest,
                seq,
            ),
        )
        if admission.outcome == "retry":
            again = self.leases.lose(seq, attempts, admission.failure, admission.reason)
            return PutResult("retried" if again else "failed", admission.reason)
        self.leases.hooks.on_put(seq, group)
        if admission.outcome == "ready":
            self.bodies.keep(seq, encode_group(group) if body is None else body, staged)
        return PutResult(admission.outcome, admission.reason)

    def _no_signal(self) -> frozenset[str]:
        """What a group agrees in to be dropped; empty once enough were dropped since the last commit."""
        enough = self.store.fact("no_signal") >= MOST_DROPPED_BATCHES * self.settings.groups_per_step
        return frozenset() if enough else self.settings.no_signal

    def _check(self, group: Group, task: Task, version: int, size: int) -> tuple[int, int]:
        """Return the lowest and highest version among sampled tokens."""
        if group.task.id != task.id:
            raise InputError(
                f"group.task.id: must be {task.id!r}, which {group.id} leased, got {group.task.id!r}"
            )
        if group.task != task:
            raise InputError(
                f"group.task: must be what {group.id} leased, task {task.id!r} as it was planned"
            )
        if group.version != version:
            raise InputError(
                f"group.version: must be the version at admission, {version}, got {group.version}"
            )
        episodes = {t.rollout for t in group.trajectories}
        if episodes != set(range(size)):
            raise InputError(f"group.trajectories: must hold {size} episodes, got {len(episodes)}")
        # While weights are published, engines serve the next version before the ledger knows of it; that is between
        # the take of a batch and its commit, and until then no later version is published.
        current, vocab_size = self.store.fact("version"), self.settings.vocab_size
        limit = current + (self.store.fact("taken_step") >= current)
        oldest, newest = limit, NOT_SAMPLED
        for t in group.trajectories:
            _check_rewards(t)
            _check_vocabulary(t, vocab_size)
            if not t.num_sampled:
                continue
            sampled = t.versions[t.loss_mask]
            low, high = int(sampled.min()), int(sampled.max())
            where = f"group.trajectories[{t.episode_index}].versions"
            if low < version:
                raise StaleError(f"{where}: must be at least {version}, the version at admission, got {low}")
            if high > limit:
                raise InputError(
                    f"{where}: must be at most {limit}, the newest version there can be, got {high}"
                )
            oldest, newest = min(oldest, low), max(newest, high)
        return oldest, newest


def _check_vocabulary(t: Trajectory, vocab_size: int) -> None:
    """Raise `InputError` for a token of any kind that the model does not have; 0 knows none that it has not."""
    named = {"token_ids": t.token_ids, **info_token_ids(t.info), **token_ids_of(t.extras)}
    for name, ids in named.items():
        if vocab_size and len(ids) and (highest := int(ids.max())) >= vocab_size:
            raise InputError(
                f"group.trajectories[{t.episode_index}].{name}: must be below {vocab_size}, the model's vocabulary, "
                f"got {highest}"
            )


def _check_rewards(t: Trajectory) -> None:
    """Raise `InputError` for a reward that no environment service would have passed on."""
    rewards = {"reward": t.reward, **{f"turns[{n}].reward": turn.reward for n, turn in enumerate(t.turns)}}
    for name, reward in (rewards | t.components).items():
        if not -MAX_REWARD <= reward <= MAX_REWARD:
            raise InputError(
                f"group.trajectories[{t.episode_index}].{name}: must lie in ±{MAX_REWARD:g}, got {reward:g}"
            )
