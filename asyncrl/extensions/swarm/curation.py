"""Rollouts shared between runs: which groups a run shows to others, which of theirs it takes, and which it draws.

    step k trains  I own groups  and  min(J, available) external ones,  after SAPO (Swarm sAmpling Policy Optimization)

As in the paper, groups whose rewards do not differ are left out and the rest is drawn at random. There a peer's text is
encoded again and scored under the receiver's own policy, as if that had sampled it. Here groups travel as tokens with
the log-probabilities of the policy that did sample them, so that losses and corrections weigh them as any stale data:
ratio = policy / peer. Peers therefore need one tokenizer. That no peer's groups crowd out the others' is ours.
Source: arXiv 2509.08721. Torch-free.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from asyncrl.types import NOT_SAMPLED, Group

MAX_EPISODES = 64
"""The most episodes of one group."""
MAX_GROUP_BYTES = 4 * 2**20
"""The most bytes of one group on its way between runs."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run takes from others."""

    environment: str
    """Name of the one environment that it plays."""
    num_token_ids: int
    """Token ids are below this."""
    max_tokens: int
    """The most tokens of one trajectory."""
    max_reward: float
    """Absolute value of any reward that is believed."""
    inputs: Set[str]
    """The kinds of extras that models read; no group with any is taken or given."""


def shareable(group: Group, inputs: Set[str]) -> bool:
    """Whether others can train the group: one plain trajectory an episode, and rewards that differ.

    inputs: the kinds of extras that models read.
    """
    plain = all(
        not (t.extras.keys() & inputs or t.peer) and t.info.keys().isdisjoint(_TOLD_APART)
        for t in group.usable
    )
    return plain and has_signal(group)


_TOLD_APART = frozenset({"rollout", "agent", "branch_of", "opponent"})
"""Keys of `Trajectory.info` without which a trajectory means something else."""


def has_signal(group: Group) -> bool:
    """Whether the rewards of usable trajectories, or of their turns, differ."""
    return len({(t.reward, *(turn.reward for turn in t.turns)) for t in group.usable}) > 1


def published(groups: Sequence[Group], step: int, share: float, seed: int, inputs: Set[str]) -> list[Group]:
    """Return which of a step's own groups others get to see: each with probability `share`, if it is of use to them.

    What only this run can use, or nobody else should read, is taken off: conversations, timings, extras.
    inputs: see `shareable`.
    """
    rng = random.Random(f"{seed}/share/{step}")
    chosen = [group for group in groups if rng.random() < share and shareable(group, inputs)]
    return [_bare(group) for group in chosen]


def _bare(group: Group) -> Group:
    bare = tuple(
        replace(t, info={}, timing={}, error="", conversation="", extras={})
        for t in group.trajectories
        if t.usable
    )
    return replace(group, trajectories=bare, worker="")


def component_names(groups: Sequence[Group]) -> frozenset[str]:
    """Return the names of the components that rewards of usable trajectories have."""
    return frozenset(name for group in groups for t in group.usable for name in t.components)


def refusal(group: Group, terms: Terms) -> str:
    """Return why a decoded group of a peer is not trained, in one word for the metrics; "" if it may be.

    That numbers are finite and arrays fit each other has been checked when it was decoded.
    """
    if group.task.env != terms.environment or group.task.split != "train":
        return "task"
    usable = group.usable
    if len(group.trajectories) > MAX_EPISODES or any(t.num_tokens > terms.max_tokens for t in usable):
        return "size"
    if any(int(t.token_ids.max()) >= terms.num_token_ids for t in usable):
        return "tokens"
    if any(t.extras.keys() & terms.inputs or bool(t.loss_mask[0]) for t in usable):
        return "tokens"
    rewards = [
        r for t in usable for r in (t.reward, *(turn.reward for turn in t.turns), *t.components.values())
    ]
    if any(not abs(reward) <= terms.max_reward for reward in rewards):
        return "reward"
    return "" if has_signal(group) else "signal"


def adopted(group: Group, name: str, peer: str, version: int) -> Group:
    """Return a peer's group as one of this run's, called `name`.

    Versions of another run say nothing here, so each sampled token gets the `version` that this run had when the group
    came: age counts from there. The log-probabilities stay the peer's.
    """
    task = replace(group.task, id=f"{name}/{group.task.id}")
    trajectories = tuple(
        replace(
            t,
            task_id=task.id,
            versions=np.where(t.loss_mask, version, NOT_SAMPLED).astype(np.int32),
            info={},
            peer=peer,
            timing={},
            conversation="",
        )
        for t in group.usable
    )
    return replace(group, id=name, task=task, version=version, trajectories=trajectories, worker="")


@dataclass(frozen=True, slots=True)
class Offered:
    """What is asked of a group that may be drawn."""

    name: str
    peer: str
    version: int
    """The run's own when the group came."""


def drawn(groups: Sequence[Offered], step: int, count: int, max_age: int, seed: int) -> list[str]:
    """Return the names of the groups that `step` trains, the same whenever it is asked for the same step.

    They are drawn at random, and every peer's first group comes before any peer's second.
    """
    available = [one for one in groups if step - one.version <= max_age]
    random.Random(f"{seed}/{step}").shuffle(available)
    before: Counter[str] = Counter()
    places = []
    for one in available:
        places.append((before[one.peer], one.name))
        before[one.peer] += 1
    return [name for _, name in sorted(places, key=lambda place: place[0])[:count]]
