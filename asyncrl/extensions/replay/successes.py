"""The successes that complete groups without one, on the first rank; see `asyncrl.extensions.replay.success_pool`.

As the groups to replay, they are the trainer's own and part of its checkpoint: a trainer that resumes completes the
same groups by the same successes. In the buffer each group is trained once, whatever completes it.

Those that were recorded before the run (`asyncrl.extensions.replay.success_file`) are read once, into a file of the
run's folder, and are no part of checkpoints: they stay as they are, and there may be many.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import torch

from asyncrl.config import Config
from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.extensions.replay.pool import PoolCallback
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.extensions.replay.success_file import recorded_successes
from asyncrl.extensions.replay.success_pool import (
    as_old_as_may_be,
    as_played,
    best_success,
    completed,
    lacks_success,
    problem,
)
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import StepGroups
from asyncrl.types import Group, Trajectory

RECORDED = "recorded_successes.msgpack"
"""File of a run's folder with the successes that were recorded before it, and where they are from."""


@dataclass(slots=True)
class SuccessPool:
    """One success of each problem, none with a token of more than `max_age` versions before the step it is for."""

    max_age: int
    groups: dict[str, Group] = field(default_factory=dict)
    """By problem: the group of the success, with that one trajectory."""
    recorded: Mapping[str, Group] = field(default_factory=dict)
    """Likewise, successes from before the run, for problems that have no success of the run's own."""

    def complete(self, groups: Sequence[Group], step: int) -> list[Group]:
        """Return the groups of a step, those without a success completed where the pool has one."""
        return [self._completed(group, step) for group in groups]

    def uses_recorded(self, group: Group, step: int) -> bool:
        """True for a group of a step that a success from before the run completes."""
        return (
            lacks_success(group) and self._own(group, step) is None and problem(group.task) in self.recorded
        )

    def _completed(self, group: Group, step: int) -> Group:
        if not lacks_success(group):
            return group
        own = self._own(group, step)
        if own is None and (before := self.recorded.get(problem(group.task))) is not None:
            own = as_old_as_may_be(before.trajectories[0], step, self.max_age)
        return group if own is None else completed(group, own)

    def _own(self, group: Group, step: int) -> Trajectory | None:
        """Return the run's own success at a group's problem, where it may be used in a step."""
        kept = self.groups.get(problem(group.task))
        if kept is None or step - kept.trajectories[0].min_version > self.max_age:
            return None
        return kept.trajectories[0]

    def remember(self, trained: Sequence[Group], step: int, without: Collection[str] = ()) -> None:
        """Take in the successes of a step's fresh groups, but those `without`; forget what is too old for the next."""
        for group in trained:
            key = problem(group.task)
            before = self.groups[key].trajectories if key in self.groups else ()
            found = None if group.id in without else best_success((*as_played(group).trajectories, *before))
            if found is not None and not any(found is one for one in before):
                self.groups[key] = replace(group, trajectories=(found,))
        self.groups = {
            key: group
            for key, group in self.groups.items()
            if step + 1 - group.trajectories[0].min_version <= self.max_age
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the groups in their wire form."""
        body = pack([encode_group(group) for group in self.groups.values()])
        return {"groups": torch.frombuffer(bytearray(body), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        found = [decode_group(body) for body in unpack(state["groups"].numpy().tobytes())]
        self.groups = {problem(group.task): group for group in found}


class Completion(PoolCallback[SuccessPool]):
    """Completes groups without a success by an earlier one, on the first rank."""

    name = "successes"

    def __init__(self, pool: SuccessPool) -> None:
        super().__init__(pool)
        self.num_recorded = 0
        """Groups of the step that successes from before the run have completed."""

    def groups(self, version: int, groups: StepGroups) -> None:
        self.num_recorded = sum(self.pool.uses_recorded(group, version) for group in groups.own)
        groups.own = self.pool.complete(groups.own, version)
        groups.added_max_age = self.pool.max_age

    def metrics(self, step: int) -> Mapping[str, float]:
        return {"replay/recorded_successes": self.num_recorded} if self.pool.recorded else {}


def completion(context: CallbackContext) -> Completion | None:
    """Return the callback, on the first rank. Raises `ConfigError` for recorded successes that cannot be trained."""
    if not context.first:
        return None
    given = context.config.section(ReplayConfig)
    pool = SuccessPool(given.replay_max_age)
    if given.complete_from:
        pool.recorded = recorded(context.config, context.arguments.model, context.arguments.folder)
    return Completion(pool)


def recorded(config: Config, model: str, folder: Path) -> dict[str, Group]:
    """Return the successes that were recorded before the run: as the run has read them, or read now and kept.

    model: of the policy. folder: of the run. Raises `ConfigError`.
    """
    path, source = folder / RECORDED, config.section(ReplayConfig).complete_from
    kept: dict[str, Any] = msgpack.unpackb(path.read_bytes()) if path.exists() else {}
    if kept.get("from") == source:
        return {problem(group.task): group for group in map(decode_group, kept["groups"])}
    found = recorded_successes(config, model)
    partial = path.with_suffix(".partial")
    partial.write_bytes(pack({"from": source, "groups": [encode_group(group) for group in found.values()]}))
    partial.replace(path)
    return found
