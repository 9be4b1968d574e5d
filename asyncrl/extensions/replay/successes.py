"""The successes that complete groups without one, on the first rank; see `asyncrl.extensions.replay.success_pool`.

As the groups to replay, they are the trainer's own and part of its checkpoint: a trainer that resumes completes the
same groups by the same successes. In the buffer each group is trained once, whatever completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.extensions.replay.pool import PoolCallback
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.extensions.replay.success_pool import as_played, best_success, completed, lacks_success, problem
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import StepGroups
from asyncrl.types import Group


@dataclass(slots=True)
class SuccessPool:
    """One success of each problem, none with a token of more than `max_age` versions before the step it is for."""

    max_age: int
    groups: dict[str, Group] = field(default_factory=dict)
    """By problem: the group of the success, with that one trajectory."""

    def complete(self, groups: Sequence[Group], step: int) -> list[Group]:
        """Return the groups of a step, those without a success completed where the pool has one."""
        return [self._completed(group, step) for group in groups]

    def _completed(self, group: Group, step: int) -> Group:
        kept = self.groups.get(problem(group.task)) if lacks_success(group) else None
        if kept is None or step - kept.trajectories[0].min_version > self.max_age:
            return group
        return completed(group, kept.trajectories[0])

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

    def groups(self, version: int, groups: StepGroups) -> None:
        groups.own = self.pool.complete(groups.own, version)
        groups.added_max_age = self.pool.max_age


def completion(context: CallbackContext) -> Completion | None:
    """Return the callback, on the first rank."""
    return (
        Completion(SuccessPool(context.config.section(ReplayConfig).replay_max_age))
        if context.first
        else None
    )
