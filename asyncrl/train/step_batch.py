"""Groups to tensors: the rows of one optimizer step, padded only per micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.errors import StaleError
from asyncrl.train.router_replay import OWN_CHOICE
from asyncrl.types import GREEDY_REWARD, Group, Status, Trajectory


@dataclass(frozen=True)
class StepBatch:
    """All usable trajectories of one step, in a fixed order, with their group indices.

    Everything that speaks of a row or a group by its number means its place in here.
    """

    trajectories: tuple[Trajectory, ...]
    group: Tensor
    """[B] index of each row's group, 0..P-1."""
    step: int
    """Version at the start of the step that trains this batch."""
    groups: tuple[Group, ...] = ()
    """[P] the groups; empty where the rows come from none, as in a supervised phase."""

    @property
    def lengths(self) -> list[int]:
        return [t.num_tokens for t in self.trajectories]

    @cached_property
    def lags(self) -> Counter[int]:
        """Number of sampled tokens by lag: the version that trains them minus the version that sampled them."""
        lags: Counter[int] = Counter()
        for trajectory in self.trajectories:
            sampled = trajectory.versions[trajectory.loss_mask]
            values, counts = np.unique(self.step - sampled, return_counts=True)
            for value, number in zip(values.tolist(), counts.tolist(), strict=True):
                lags[int(value)] += int(number)
        return lags

    @cached_property
    def rewards(self) -> Tensor:
        """[B] float32."""
        return torch.tensor([t.reward for t in self.trajectories])

    @cached_property
    def whole(self) -> Rows:
        """All rows as padded tensors, made once. Not to be written to."""
        return pad_rows(self, range(len(self.trajectories)))


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
    routed_experts: Tensor | None
    """[B,T,layers,K] int16, `OWN_CHOICE` where none is recorded; None where none is in any row."""


def build_step_batch(groups: Sequence[Group], step: int, max_staleness: int) -> StepBatch:
    """Order the usable trajectories by group, task and episode.

    Raises `StaleError` if any sampled token is older than `step - max_staleness` or newer than `step`.
    """
    trajectories: list[Trajectory] = []
    index: list[int] = []
    ordered = tuple(sorted(groups, key=lambda g: g.task.id))
    for number, group in enumerate(ordered):
        for trajectory in sorted(group.usable, key=lambda t: t.episode_index):
            _check_versions(trajectory, step, max_staleness)
            trajectories.append(trajectory)
            index.append(number)
    return StepBatch(tuple(trajectories), torch.tensor(index, dtype=torch.long), step, ordered)


def _check_versions(trajectory: Trajectory, step: int, max_staleness: int) -> None:
    versions = trajectory.versions[trajectory.loss_mask]
    oldest, newest = int(versions.min()), int(versions.max())
    if oldest < step - max_staleness or newest > step:
        raise StaleError(
            f"task {trajectory.task_id} episode {trajectory.episode_index} has tokens of versions {oldest} to "
            f"{newest}; the step that starts at version {step} may train {step - max_staleness} to {step}"
        )


def pad_rows(batch: StepBatch, indices: Sequence[int]) -> Rows:
    """Return the rows `indices` as tensors; no rows give one fully masked row of length 2."""
    chosen = [batch.trajectories[i] for i in indices]
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
        _pad_experts(chosen, width),
    )


def _pad_experts(rows: Sequence[Trajectory], width: int) -> Tensor | None:
    """Return the experts [B,width,layers,K] of the tokens of rows, None where none of them has any."""
    known = {i: t.routed_experts for i, t in enumerate(rows) if t.routed_experts is not None}
    if not known:
        return None
    shape = next(iter(known.values())).shape[1:]
    found = np.full((len(rows), width, *shape), OWN_CHOICE, np.int16)
    for row, experts in known.items():
        found[row, : len(experts)] = experts
    return torch.from_numpy(found)


def to_advantage_batch(batch: StepBatch, token_tensors: dict[str, Any] | None = None) -> AdvantageBatch:
    """Return what advantage estimators read, for all rows. `token_tensors` are [B,T] extras such as `old_logp`."""
    rows = batch.whole
    names = sorted({name for t in batch.trajectories for name in t.components})
    return AdvantageBatch(
        rewards=batch.rewards,
        group=batch.group,
        mask=rows.mask,
        turn_ids=rows.turn_ids,
        turn_rewards=[[turn.reward for turn in t.turns] for t in batch.trajectories],
        observation_ids=[[turn.observation_id for turn in t.turns] for t in batch.trajectories],
        components={
            name: torch.tensor([t.components.get(name, float("nan")) for t in batch.trajectories])
            for name in names
        },
        agents=[str(t.info.get("agent", "")) for t in batch.trajectories],
        truncated=torch.tensor([t.status is Status.TRUNCATED for t in batch.trajectories]),
        turn_matches=_matches(batch),
        rollouts=_rollouts(batch),
        greedy_rewards=_greedy_rewards(batch),
        branches=[_branch(t) for t in batch.trajectories],
        behavior_logp=rows.behavior_logp,
        **(token_tensors or {}),
    )


def _matches(batch: StepBatch) -> list[list[bool]] | None:
    """Return each turn's agreement with the expert, None when the environment does not say."""
    if any(turn.matches is None for t in batch.trajectories for turn in t.turns):
        return None
    return [[bool(turn.matches) for turn in t.turns] for t in batch.trajectories]


def _rollouts(batch: StepBatch) -> list[str] | None:
    """Return which rollout each row belongs to, where an episode has one trajectory per agent."""
    if not any("rollout" in t.info for t in batch.trajectories):
        return None
    return [f"{t.task_id}/{t.info.get('rollout', t.episode_index)}" for t in batch.trajectories]


def _branch(t: Trajectory) -> tuple[str, str, int]:
    """Return the trajectory's name, its parent's and the turn at which it branches off."""
    parent = t.info.get("branch_of")
    above = "" if parent is None else f"{t.task_id}/{parent}"
    return f"{t.task_id}/{t.episode_index}", above, int(t.info.get("branch_turn", 0))


def _greedy_rewards(batch: StepBatch) -> Tensor | None:
    """Return the greedy rollout's reward for each row (ReMax), None when none was played."""
    if any(GREEDY_REWARD not in t.info for t in batch.trajectories):
        return None
    return torch.tensor([float(t.info[GREEDY_REWARD]) for t in batch.trajectories])
