"""The groups that may be trained again, on the first rank; see `asyncrl.extensions.replay.rule`.

The pool is the trainer's own and part of its checkpoint. The buffer knows nothing of it: there each group is trained
once, and a trainer that resumes has the pool of the version it resumes from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.extensions.replay.pool import PoolCallback
from asyncrl.extensions.replay.rule import Played, drawn, remembered
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import StepGroups
from asyncrl.train.step.step_batch import FurtherGroups
from asyncrl.types import Group


@dataclass(slots=True)
class ReplayPool:
    """Draws `count` groups a step, none with a token of more than `max_age` versions before it."""

    count: int
    max_age: int
    seed: int
    groups: dict[str, Group] = field(default_factory=dict)
    """By id, in the order in which they were trained."""

    def draw(self, step: int) -> list[Group]:
        """Return the groups that `step` trains again."""
        chosen = drawn(self._played(), step, self.count, self.max_age, self.seed)
        return [self.groups[one.id] for one in chosen]

    def remember(self, trained: Sequence[Group], step: int, without: Collection[str] = ()) -> None:
        """Take in the fresh groups of a step, but those `without`; forget what will not be drawn any more."""
        self.groups |= {group.id: group for group in trained}
        for name in without:
            self.groups.pop(name, None)
        kept = remembered(self._played(), step, self.count, self.max_age)
        self.groups = {one.id: self.groups[one.id] for one in kept}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the groups in their wire form."""
        body = pack([encode_group(group) for group in self.groups.values()])
        return {"groups": torch.frombuffer(bytearray(body), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = [decode_group(body) for body in unpack(state["groups"].numpy().tobytes())]
        self.groups = {group.id: group for group in found}

    def _played(self) -> list[Played]:
        return [played(group) for group in self.groups.values()]


def played(group: Group) -> Played:
    """Return what is asked of a group that has usable trajectories."""
    oldest = min(t.min_version for t in group.usable)
    return Played(group.id, oldest, tuple(float(t.reward) for t in group.usable))


class Replay(PoolCallback[ReplayPool]):
    """Has each step train groups of earlier ones again, on the first rank."""

    name = "replay"

    def groups(self, version: int, groups: StepGroups) -> None:
        groups.further.append(FurtherGroups("replayed", self.pool.draw(version), self.pool.max_age))


def replay(context: CallbackContext) -> Replay | None:
    """Return the callback, on the first rank."""
    given, seed = context.config.section(ReplayConfig), context.config.run.seed
    return Replay(ReplayPool(given.replay_groups, given.replay_max_age, seed)) if context.first else None
