"""Groups that are explored on low-precision engines and regenerated on the others, after Sol-RL (arXiv 2604.06916).

    candidates, on explorers --rewards--> the most contrastive --same seeds--> the group, on the other engines

Engines draw a turn's tokens by its seed, so an episode that is played again follows its candidate for as long as both
engines' distributions are alike enough for the same draws to mean the same tokens. Candidates are never part of a
group: its tokens, log-probabilities, versions and rewards are those of the episodes played again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncrl.algo.curation.contrast import has_contrast, most_contrastive
from asyncrl.chat.renderer import sampling_seed
from asyncrl.rollout.group import EpisodeGroupRunner, play_all
from asyncrl.rollout.player import EpisodePlayer, EpisodeRequest
from asyncrl.types import EXPLORED, Group, Lease, Trajectory

Episode = Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A candidate that is played again."""

    seed: int
    episode: Episode | None
    """Its trajectories; None where it failed, and only its seed is used."""


class ExploringRunner:
    """A `GroupRunner` that plays candidates first.

    explorer: plays candidates. runner: plays groups, without branches and hints. count: candidates of a group; groups
    of at least as many episodes are played as usual. seed: the run's.
    """

    def __init__(self, explorer: EpisodePlayer, runner: EpisodeGroupRunner, count: int, seed: int) -> None:
        self.explorer = explorer
        self.runner = runner
        self.count = count
        self.seed = seed

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `GroupRunner`. Candidates have the attempts of episodes, and those that fail all the same are none."""
        if self.count <= lease.group_size:
            return await self.runner.run_group(lease, worker, episode_timeout_s)
        seeds = [episode_seed(self.seed, lease, index) for index in range(self.count)]
        requests = [
            EpisodeRequest(
                task=lease.task,
                index=index,
                id=f"{worker}-{lease.id}-candidate-{index}",
                min_version=lease.version,
                order=lease.order,
                max_turns=lease.max_turns,
                examples=lease.examples,
                timeout_s=episode_timeout_s,
                seed=seed,
            )
            for index, seed in enumerate(seeds)
        ]
        candidates = await play_all([(self.explorer, request) for request in requests])
        chosen = choose(seeds, candidates, lease.group_size)
        group = await self.runner.run_group(lease, worker, episode_timeout_s, [one.seed for one in chosen])
        return compared(group, candidates, chosen)


def episode_seed(run_seed: int, lease: Lease, index: int) -> int:
    """Return the seed of a candidate and of the episode that repeats it; every attempt at a task has other ones."""
    return sampling_seed(run_seed, lease.task.id, index, lease.attempt)


def choose(seeds: Sequence[int], candidates: Sequence[Episode], size: int) -> list[Chosen]:
    """Return what the `size` episodes of a group repeat, in their order.

    Where fewer candidates are usable than the group has episodes, all of them are repeated, and the seeds of failed
    ones make up the number.
    """
    usable = [index for index, episode in enumerate(candidates) if episode[0].usable]
    best = [usable[i] for i in most_contrastive([candidates[i][0].reward for i in usable], size)]
    failed = [index for index in range(len(candidates)) if index not in usable]
    found = [Chosen(seeds[index], candidates[index]) for index in best]
    return found + [Chosen(seeds[index], None) for index in failed[: size - len(found)]]


def compared(group: Group, candidates: Sequence[Episode], chosen: Sequence[Chosen]) -> Group:
    """Return the group with what is known of its candidates in each trajectory's `info`.

    `EXPLORED` holds `candidates` (usable ones), `tokens` that they sampled, whether they had `contrast`, and for the
    episode's own candidate its `reward` and whether `same_tokens` were sampled again, both None without one.
    """
    usable = [episode[0] for episode in candidates if episode[0].usable]
    common = {
        "candidates": len(usable),
        "tokens": sum(t.num_sampled for episode in candidates for t in episode),
        "contrast": has_contrast([t.reward for t in usable]),
    }
    noted = []
    for trajectory in group.trajectories:
        candidate = chosen[trajectory.rollout].episode
        episode = [t for t in group.trajectories if t.rollout == trajectory.rollout]
        own = {
            "reward": None if candidate is None else candidate[0].reward,
            "same_tokens": None if candidate is None else _same_tokens(candidate, episode),
        }
        noted.append(replace(trajectory, info={**trajectory.info, EXPLORED: common | own}))
    return replace(group, trajectories=tuple(noted))


def _same_tokens(one: Episode, other: Episode) -> bool:
    """Return whether two episodes have the same trajectories, token by token."""
    if len(one) != len(other):
        return False
    return all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one, other, strict=True))
