"""Groups to tensors: the rows of one optimizer step, padded only per micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.data.micro_batches import Packing, pack_rows
from asyncrl.data.token_extras import table as token_extras
from asyncrl.errors import StaleError
from asyncrl.train.step.ragged import within
from asyncrl.train.step.row_facts import FACTS
from asyncrl.types import NOT_SAMPLED, Group, Status, Trajectory


@dataclass(frozen=True)
class Outline:
    """What all ranks know of a batch."""

    lengths: list[int]
    """[B] tokens."""
    counts: np.ndarray
    """[B] sampled tokens."""
    group_ids: list[str]
    """[P] names of the groups."""
    packing: Packing | None
    """None where the model does not compute prefixes that rows share only once."""


@dataclass(frozen=True)
class StepBatch:
    """All usable trajectories of one step, in a fixed order, with their group indices.

    Everything that speaks of a row or a group by its number means its place in here. The first rank has the whole
    batch; the others have an outline of it and the rows that they were served (`asyncrl.train.step.serve_rows`).
    """

    trajectories: tuple[Trajectory, ...]
    """[B] on the first rank, empty on the others."""
    group: Tensor
    """[B] index of each row's group, 0..P-1."""
    step: int
    """Version at the start of the step that trains this batch."""
    groups: tuple[Group, ...] = ()
    """[P] the groups: fresh ones first; empty where the rows come from none, as in a supervised phase, and on other
    ranks."""
    further: Mapping[str, int] = field(default_factory=dict)
    """How many of the groups are no fresh ones, by kind in their order. On the first rank."""
    outline: Outline | None = None
    """On ranks other than the first."""
    held: dict[int, Trajectory] = field(default_factory=dict)
    """On ranks other than the first: the rows that they were served."""
    sent: dict[int, frozenset[int]] = field(default_factory=dict)
    """On the first rank: what the others hold."""

    @property
    def num_rows(self) -> int:
        return len(self.group)

    def row(self, index: int) -> Trajectory:
        """Return a row that this rank has."""
        return self.trajectories[index] if self.trajectories else self.held[index]

    @property
    def fresh(self) -> tuple[Group, ...]:
        """The groups that were sampled for this step."""
        return self.groups[: len(self.groups) - sum(self.further.values())]

    @property
    def played(self) -> tuple[Group, ...]:
        """The fresh groups as they were played, without rows that were added to them."""
        return tuple(
            replace(group, trajectories=tuple(t for t in group.trajectories if not t.pooled_from))
            if any(t.pooled_from for t in group.trajectories)
            else group
            for group in self.fresh
        )

    @cached_property
    def fresh_rows(self) -> list[int]:
        """The rows that were sampled for this step: those of fresh groups, without what was added to some of them. On
        the first rank."""
        num_fresh = len(self.fresh) if self.further else len(self.group)
        of_rows = zip(self.group.tolist(), self.trajectories, strict=False)
        return [row for row, (group, t) in enumerate(of_rows) if group < num_fresh and not t.pooled_from]

    @cached_property
    def fresh_trajectories(self) -> tuple[Trajectory, ...]:
        """The trajectories of `fresh_rows`."""
        return tuple(self.trajectories[row] for row in self.fresh_rows)

    @property
    def num_added(self) -> int:
        """How many rows of earlier steps were added to groups. On the first rank."""
        return sum(bool(t.pooled_from) for t in self.trajectories)

    @cached_property
    def lengths(self) -> list[int]:
        """[B] tokens."""
        return [t.num_tokens for t in self.trajectories] if self.outline is None else self.outline.lengths

    @cached_property
    def counts(self) -> np.ndarray:
        """[B] sampled tokens."""
        if self.outline is not None:
            return self.outline.counts
        return np.array([t.num_sampled for t in self.trajectories], np.int64)

    @cached_property
    def packing(self) -> Packing:
        """What the rows take as a tree of prefixes. The first rank knows it, others where the model has trees."""
        if self.outline is not None:
            assert self.outline.packing is not None
            return self.outline.packing
        return pack_rows([_tree_keys(t) for t in self.trajectories], self.group.tolist())

    @cached_property
    def group_ids(self) -> list[str]:
        """[P] names of the groups."""
        return [group.id for group in self.groups] if self.outline is None else self.outline.group_ids

    @cached_property
    def component_names(self) -> list[str]:
        """Names of the reward components of any row, sorted. On the first rank."""
        return sorted({name for t in self.trajectories for name in t.components})

    @cached_property
    def lags(self) -> Counter[int]:
        """Number of sampled tokens of fresh groups by lag: the version that trains minus the one that sampled them."""
        lags: Counter[int] = Counter()
        for trajectory in self.fresh_trajectories:
            sampled = trajectory.versions[trajectory.loss_mask]
            values, counts = np.unique(self.step - sampled, return_counts=True)
            for value, number in zip(values.tolist(), counts.tolist(), strict=True):
                lags[int(value)] += int(number)
        return lags

    @cached_property
    def rewards(self) -> Tensor:
        """[B] float32."""
        return torch.tensor([t.reward for t in self.trajectories])


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows as padded tensors. T is the longest row."""

    indices: list[int]
    token_ids: Tensor
    """[B,T] int64, padded with 0."""
    mask: Tensor
    """[B,T] bool."""
    behavior_logp: Tensor
    """[B,T] float32."""
    versions: Tensor
    """[B,T] int64, -1 where not sampled."""
    turn_ids: Tensor
    """[B,T] int64, the turn that each token is part of, -1 elsewhere."""
    extras: dict[str, Any]
    """What models read besides the ids, by kind: those that any of the rows has (`asyncrl.data.token_extras`)."""


@dataclass(frozen=True, slots=True)
class FurtherGroups:
    """Groups that a step trains beside the fresh ones."""

    kind: str
    groups: Sequence[Group]
    max_age: int
    """Versions that their oldest token may be behind the step."""


def build_step_batch(
    groups: Sequence[Group],
    step: int,
    max_staleness: int,
    further: Sequence[FurtherGroups] = (),
    added_max_age: int = 0,
) -> StepBatch:
    """Order the usable trajectories by group, task and episode: those of fresh groups, then those of further ones.

    Raises `StaleError` if any sampled token is newer than `step`, or older than `step - max_staleness`; of further
    groups older than their own limit, and of a row that was added to a group than `step - added_max_age`.
    """
    trajectories: list[Trajectory] = []
    index: list[int] = []
    found: list[Group] = []
    for some in (FurtherGroups("", groups, max_staleness), *further):
        for group in sorted(some.groups, key=lambda g: g.task.id):
            for trajectory in sorted(group.usable, key=lambda t: t.episode_index):
                _check_versions(trajectory, step, added_max_age if trajectory.pooled_from else some.max_age)
                trajectories.append(trajectory)
                index.append(len(found))
            found.append(group)
    of_rows = torch.tensor(index, dtype=torch.long)
    counts = {some.kind: len(some.groups) for some in further if some.groups}
    return StepBatch(tuple(trajectories), of_rows, step, tuple(found), counts)


def _check_versions(trajectory: Trajectory, step: int, max_staleness: int) -> None:
    versions = trajectory.versions[trajectory.loss_mask]
    oldest, newest = int(versions.min()), int(versions.max())
    if oldest < step - max_staleness or newest > step:
        raise StaleError(
            f"task {trajectory.task_id} episode {trajectory.episode_index} has tokens of versions {oldest} to "
            f"{newest}; the step that starts at version {step} may train {step - max_staleness} to {step}"
        )


def row_to_score(
    token_ids: np.ndarray,
    mask: np.ndarray,
    task_id: str,
    episode_index: int = 0,
    version: int = 0,
    extras: Mapping[str, Any] = MappingProxyType({}),
) -> Trajectory:
    """Return a row [L] that a model only reads, for what it computes at the tokens in `mask` [L].

    task_id, episode_index: what errors name. version: that the tokens in `mask` count as sampled by.
    """
    return Trajectory(
        task_id=task_id,
        episode_index=episode_index,
        token_ids=token_ids,
        loss_mask=mask,
        behavior_logprobs=np.zeros(len(token_ids), np.float32),
        versions=np.where(mask, version, NOT_SAMPLED).astype(np.int32),
        turns=(),
        reward=0.0,
        status=Status.FINISHED,
        extras=dict(extras),
    )


def pad_rows(batch: StepBatch, indices: Sequence[int]) -> Rows:
    """Return the rows `indices` as tensors; no rows give one fully masked row of length 2."""
    chosen = [batch.row(i) for i in indices]
    width = max((t.num_tokens for t in chosen), default=2)
    count = max(1, len(chosen))
    token_ids = np.zeros((count, width), np.int64)
    mask = np.zeros((count, width), bool)
    logp = np.zeros((count, width), np.float32)
    versions = np.full((count, width), -1, np.int64)
    turn_ids = np.full((count, width), -1, np.int64)
    for row, t in enumerate(chosen):
        n = t.num_tokens
        token_ids[row, :n] = t.token_ids
        mask[row, :n] = t.loss_mask
        logp[row, :n] = np.where(t.loss_mask, t.behavior_logprobs, 0.0)
        versions[row, :n] = t.versions
        for number, turn in enumerate(t.turns):
            turn_ids[row, turn.start : turn.end] = number
    return Rows(
        list(indices),
        torch.from_numpy(token_ids),
        torch.from_numpy(mask),
        torch.from_numpy(logp),
        torch.from_numpy(versions),
        torch.from_numpy(turn_ids),
        {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in token_extras.padded([t.extras for t in chosen], width).items()
        },
    )


def _tree_keys(t: Trajectory) -> np.ndarray:
    """Return what must agree where rows share a token [L] or [L,C], up to the last sampled one."""
    end = int(np.flatnonzero(t.loss_mask)[-1]) + 1 if t.num_sampled else 1
    more = token_extras.keys(t.extras, end)
    if not more:
        return np.ascontiguousarray(t.token_ids[:end])
    return np.concatenate([t.token_ids[:end, None].astype(np.int32), *more], axis=1)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens of some rows, without those between them, as tensors. S is the most that a row has."""

    mask: Tensor
    """[B,S] bool, True at the first places of each row."""
    behavior_logp: Tensor
    """[B,S] float32."""
    versions: Tensor
    """[B,S] int32, -1 beyond the end."""
    turn_ids: Tensor
    """[B,S] int32, -1 beyond the end."""


def sampled_tokens(batch: StepBatch, rows: Sequence[int]) -> Sampled:
    """Return the sampled tokens of rows. Only the first rank has all of them."""
    counts = batch.counts[list(rows)]
    shape = (len(rows), int(counts.max(initial=0)))
    logp = np.zeros(shape, np.float32)
    versions, turn_ids = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    for place, row in enumerate(rows):
        t, count = batch.row(row), counts[place]
        turns = np.full(t.num_tokens, -1, np.int32)
        for number, turn in enumerate(t.turns):
            turns[turn.start : turn.end] = number
        logp[place, :count] = t.behavior_logprobs[t.loss_mask]
        versions[place, :count] = t.versions[t.loss_mask]
        turn_ids[place, :count] = turns[t.loss_mask]
    return Sampled(
        within(counts, shape[1]),
        torch.from_numpy(logp),
        torch.from_numpy(versions),
        torch.from_numpy(turn_ids),
    )


def to_advantage_batch(
    batch: StepBatch, token_tensors: dict[str, Any] | None = None, rows: Sequence[int] | None = None
) -> AdvantageBatch:
    """Return what advantage estimators read of rows, by default of all.

    T counts their sampled tokens: estimators read no others. `token_tensors` are extras for the same rows, [B,T] as
    `old_logp` or [B].
    """
    chosen = list(range(batch.num_rows)) if rows is None else list(rows)
    trajectories = [batch.trajectories[row] for row in chosen]
    sampled = sampled_tokens(batch, chosen)
    return AdvantageBatch(
        rewards=batch.rewards[chosen],
        group=torch.unique(batch.group[chosen], return_inverse=True)[1],
        mask=sampled.mask,
        current_version=batch.step,
        turn_ids=sampled.turn_ids.long(),
        turn_rewards=[[turn.reward for turn in t.turns] for t in trajectories],
        observation_ids=[[turn.observation_id for turn in t.turns] for t in trajectories],
        components={
            name: torch.tensor([t.components.get(name, float("nan")) for t in trajectories])
            for name in batch.component_names
        },
        truncated=torch.tensor([t.status is Status.TRUNCATED for t in trajectories]),
        behavior_logp=sampled.behavior_logp,
        **{name: read(trajectories) for name, read in FACTS.items()},
        **(token_tensors or {}),
    )
