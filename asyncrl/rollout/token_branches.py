"""Branches that leave inside a turn: where the engine says two tokens were about equally likely, after a look ahead.

parents --> likeliest tokens of each, one request --> forks --> look-ahead of each --> those that go another way
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asyncrl.algo.curation.look_ahead import LOOK_AHEAD, TokenFork, is_alike, token_forks
from asyncrl.chat.renderer import Limits, sampling_seed
from asyncrl.errors import DeadlineError, InfrastructureError, InputError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.images import images_in
from asyncrl.rollout.given_prefix import GivenPrefix, StartedTurn
from asyncrl.together import together
from asyncrl.types import Decoding, Lease, Trajectory

TRIED = 4
"""Forks that are looked ahead from, at most, for each branch that is wanted."""


class TokenBranches:
    """Starts branches inside the turns of episodes that were played. The temperature is 1.

    limits: of turns and episodes, those of the player.
    stop_token_ids: what ends a turn.
    seed: run seed for repeatable sampling; None lets the engine draw.
    """

    def __init__(
        self, generator: Generator, limits: Limits, stop_token_ids: tuple[int, ...], seed: int | None
    ) -> None:
        self.generator = generator
        self.limits = limits
        self.stop_token_ids = stop_token_ids
        self.seed = seed

    async def prefixes(
        self, parents: Sequence[Trajectory], sessions: Sequence[str], count: int, lease: Lease
    ) -> list[GivenPrefix]:
        """Return the beginnings of up to `count` branches of `parents`, whose sessions are `sessions`.

        None of failed episodes, and none where no engine answers: the episodes that are then played whole say why.
        """
        try:
            usable = [place for place, parent in enumerate(parents) if parent.usable]
            parents, sessions = [parents[i] for i in usable], [sessions[i] for i in usable]
            asked = zip(parents, sessions, strict=True)
            likeliest = await together(self._likeliest(parent, session, lease) for parent, session in asked)
            versions = [version for _, version in likeliest]
            forks = token_forks(parents, [places for places, _ in likeliest])[: TRIED * count]
            found: list[GivenPrefix] = []
            while forks and len(found) < count:
                some = forks[: count - len(found)]
                forks = forks[len(some) :]
                tried = await together(
                    self._look_ahead(parents[fork.parent], fork, sessions[fork.parent], versions[fork.parent], lease)
                    for fork in some
                )  # fmt: skip
                found += [one for one in tried if one is not None]
            return found
        except (InfrastructureError, InputError, DeadlineError):
            return []

    async def _likeliest(
        self, parent: Trajectory, session: str, lease: Lease
    ) -> tuple[tuple[dict[int, float], ...], int]:
        """Return the likeliest tokens at each place of a parent, and the version of the policy that says so."""
        ids = parent.token_ids[: self.limits.max_tokens - 1]
        generated = await self.generator.generate(
            GenerateRequest(
                id=f"{session}-likeliest",
                token_ids=ids,
                max_tokens=1,
                decoding=Decoding(top_logprobs=2, prompt_logprobs=True),
                session=session,
                min_version=lease.version,
                order=lease.order,
                images=images_in(parent.images, 0, len(ids)),
            )
        )
        return generated.prompt_logprobs, int(generated.versions[0])

    async def _look_ahead(
        self, parent: Trajectory, fork: TokenFork, session: str, version: int, lease: Lease
    ) -> GivenPrefix | None:
        """Sample the first tokens of a branch; None where it says nearly what its parent says."""
        turn = parent.turns[fork.turn]
        given = parent.token_ids[turn.start : fork.place]
        own = Generated(
            np.array([fork.token_id], np.int32),
            np.array([fork.logprob], np.float32),
            np.array([version], np.int32),
            "stop" if fork.token_id in self.stop_token_ids else "length",
        )
        room = min(self.limits.max_tokens - fork.place, self.limits.max_tokens_per_turn - len(given)) - 1
        if own.finish_reason == "length" and room > 0:
            asked = GenerateRequest(
                id=f"{session}-ahead-{fork.place}",
                token_ids=np.concatenate([parent.token_ids[: fork.place], own.token_ids]),
                max_tokens=min(LOOK_AHEAD - 1, room),
                seed=self._seed(lease, parent, fork),
                stop_token_ids=self.stop_token_ids,
                session=session,
                min_version=lease.version,
                order=lease.order,
                images=images_in(parent.images, 0, fork.place),
            )
            rest = await self.generator.generate(asked)
            # The first token is what this engine, or another one of the same weights, holds to be likely.
            own = replace(own, engine=rest.engine).followed_by(rest)
        ends = own.finish_reason == "stop"
        if is_alike(own.token_ids.tolist(), parent.token_ids[fork.place : turn.end].tolist(), ends):
            return None
        turns = tuple(parent.token_ids[one.start : one.end] for one in parent.turns[: fork.turn])
        info = {"branch_of": parent.episode_index, "branch_turn": fork.turn, "branch_token": len(given)}
        started = StartedTurn(parent.token_ids[: turn.start], given, own)
        return GivenPrefix(turns, info, session, started=started)

    def _seed(self, lease: Lease, parent: Trajectory, fork: TokenFork) -> int | None:
        if self.seed is None:
            return None
        # Another one than that of any turn: places of tokens are counted from the end.
        return sampling_seed(self.seed, lease.task.id, parent.episode_index, -1 - fork.place)
