"""Episodes in which a past version of the policy plays one side; only the other side's trajectories are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.group import GroupRunner, number_branches
from asyncrl.rollout.multi_policy import silent
from asyncrl.types import OPPONENT, Group, Lease, Opponent, Trajectory


class OpponentGenerator:
    """Has the turns of the opponent's side sampled by its version, and all others by the newest one."""

    def __init__(self, engines: Generator, opponent: Opponent) -> None:
        self.engines = engines
        self.opponent = opponent

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`."""
        if plays(self.opponent, request.agent):
            # An engine that has the version at which the group was admitted holds the members, too.
            request = replace(request, version=self.opponent.version)
        return await self.engines.generate(request)


class OpponentRunner:
    """A `GroupRunner` that plays groups against whom they were dealt.

    make_runner: returns a runner of groups that samples from the given generator. engines: where all versions sample.
    """

    def __init__(self, make_runner: Callable[[Generator], GroupRunner], engines: Generator) -> None:
        self.make_runner = make_runner
        self.engines = engines
        self.alone = make_runner(engines)

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `GroupRunner`."""
        opponent = lease.opponent
        if opponent is None:
            return await self.alone.run_group(lease, worker, episode_timeout_s)
        runner = self.make_runner(OpponentGenerator(self.engines, opponent))
        return learners_part(await runner.run_group(lease, worker, episode_timeout_s), opponent)


def plays(opponent: Opponent, agent: str) -> bool:
    """True when the opponent plays this agent; "" is the main agent."""
    return opponent.main == (agent == "")


def learners_part(group: Group, opponent: Opponent) -> Group:
    """Return the group without the opponent's trajectories.

    An episode in which the learner has not spoken counts as one without sampled tokens, and as failed where it failed.
    """
    episodes: dict[int, list[Trajectory]] = {}
    for trajectory in group.trajectories:
        episodes.setdefault(trajectory.rollout, []).append(trajectory)
    kept = []
    for index in sorted(episodes):
        played = episodes[index]
        own = [t for t in played if not plays(opponent, str(t.info.get("agent", "")))] or [silent(played[0])]
        kept.append([replace(t, info={**t.info, OPPONENT: opponent.version}) for t in own])
    return replace(group, trajectories=tuple(number_branches(kept)))
