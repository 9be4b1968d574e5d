"""Branches: some episodes of a group leave a sibling before the turns about which the policy was least certain.

The turns that a branch shares with its parent are played in the environment like sampled ones and are context to the
policy: their tokens are not trained. Each token of a tree of branches is therefore trained once, in the trajectory that
sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asyncrl.extensions.branches.forks import Fork, least_certain
from asyncrl.extensions.branches.settings import BranchesConfig
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest, GivenPrefix, attempt_id
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import Lease, Trajectory


class Branches:
    """A `GroupStrategy` that lets `count` episodes of a group branch off the others, once these are played.

    A group with fewer forks has whole episodes in their stead.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        whole = requests[: max(1, len(requests) - self.count)]
        played = await play(whole)
        rest = requests[len(whole) :]
        if not rest:
            return played
        parents = [(one, episode[0]) for one, episode in zip(whole, played, strict=True) if len(episode) == 1]
        forks = least_certain([trunk for _, trunk in parents], len(rest))
        prefixes = [prefix_of(*parents[fork.parent], fork) for fork in forks]
        missing = len(rest) - len(prefixes)
        branched = [
            replace(one, prefix=prefix)
            for one, prefix in zip(rest, [*prefixes, *[None] * missing], strict=True)
        ]
        return [*played, *await play(branched)]


def prefix_of(request: EpisodeRequest, parent: Trajectory, fork: Fork) -> GivenPrefix:
    """Return the prefix of an episode that repeats `parent`, which was played for `request`, up to the fork."""
    turns = tuple(parent.token_ids[turn.start : turn.end] for turn in parent.turns[: fork.turn])
    info = {"branch_of": parent.episode_index, "branch_turn": fork.turn}
    return GivenPrefix(turns, info, attempt_id(request.id, parent.info.get("attempts", 1)))


def configured(parts: WorkerParts) -> Branches | None:
    """Return the branches of a run (`rollout.branches`); None where it has none, and where an agent plays."""
    count = parts.config.section(BranchesConfig).branches
    return Branches(count) if count and not parts.elsewhere else None
