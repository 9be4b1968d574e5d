"""Applies what `engine_balance` decides: an engine of one policy ends, and one of another starts on its GPUs.

    seen -> the donor's newest engine takes nothing new -> has nothing left, or the deadline -> SIGTERM -> it has ended
         -> an engine of the receiver starts on its GPUs -> it serves -> it takes part
                                                         -> it does not: the donor gets its engine back

One change at a time. A started engine gets the newest weights of its policy before its first request, as any that
starts. GPUs on which no engine has started are tried again by the two policies by turns, after longer and longer
pauses. Each stage is a line for the user and one in `scaling.jsonl`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncRLError
from asyncrl.gpus import visibility
from asyncrl.launch.activity import states
from asyncrl.launch.autoscale import Change
from asyncrl.launch.engine_balance import EngineLoad, Moment, Move, called, decide, trim
from asyncrl.launch.process_changes import (
    FailedStarts,
    Growth,
    Retirement,
    observe_every_s,
    trainer_waits,
    write_event,
)
from asyncrl.launch.roles import PolicyRoles, Roles


@dataclass(slots=True)
class _UnderWay:
    """A move that has begun: an engine of the donor leaves, then its GPUs are free, then an engine starts there."""

    move: Move
    leaves: Retirement | None
    gpus: Mapping[str, str]
    """The variables that show an engine the GPUs."""
    starts: Growth | None = None
    policy: str = ""
    """Whose engine starts."""


class EngineMoves:
    """Has engines change over between the policies of a run. Call `tick` again and again, from the main thread."""

    def __init__(self, roles: Roles, folder: Path, say: Callable[[str], None]) -> None:
        config = roles.config
        self.roles, self.folder, self.say = roles, folder, say
        self.cooldown_s = config.scale.cooldown_s
        self.deadline_s = config.rollout.episode_timeout_s
        """How long an engine that leaves may finish what it has."""
        every: dict[str, PolicyRoles] = {"": roles, **roles.policies}
        self.policies = {name: policy for name, policy in every.items() if policy.host is None}
        """Those that have engines of their own, by name; "" is the recipe's own."""
        self._window: list[Moment] = []
        self._changes: dict[str, Change] = {}
        self._failed = FailedStarts(self.cooldown_s)
        self._under_way: _UnderWay | None = None
        self._looked = float("-inf")

    async def tick(self, stats: Mapping[str, Any]) -> bool:
        """Observe, and go on with a move or begin one. stats: the latest counts of the main policy's buffer.

        Return True when engines that others must know of have come or are leaving: then the jobs are to be described.
        """
        now = time.monotonic()
        if now - self._looked < observe_every_s(self.cooldown_s):
            return False
        self._looked = now
        if self._under_way is not None:
            return await self._go_on(self._under_way)
        self._window = trim([*self._window, await self._observe(stats)], self.cooldown_s)
        # The trainer of one that has ended brings no weights to a further engine.
        ended = {name for name, one in self.policies.items() if self.roles.supervisor.done(one.trainer)}
        move = decide(self._window, self._changes, self._failed.held() | ended, self.cooldown_s)
        if move is None:
            return False
        process = self.policies[move.donor].retire("engine")
        leaves = Retirement("engine", process, now)
        self._under_way = _UnderWay(move, leaves, visibility(process.env))
        donor, receiver = called(move.donor), called(move.receiver)
        self.say(f"scale.engine: {process.name} changes over from {donor} to {receiver}: {move.reason}")
        self._write(move, name=process.name, reason=move.reason)
        return True

    async def _go_on(self, one: _UnderWay) -> bool:
        if one.leaves is not None:
            await self._retire(one, one.leaves)
        elif one.starts is not None:
            return self._grow(one, one.starts)
        else:
            self._start(one)
        return False

    async def _retire(self, one: _UnderWay, leaves: Retirement) -> None:
        """Wait for what an engine still has, end it, and note how it left."""
        if not await leaves.ended(self.roles.credentials, self.deadline_s, leaves.heard):
            return
        self.roles.process_group.forget(leaves.process)
        self.say(f"scale.engine: {leaves.process.name} has left {called(one.move.donor)}: {leaves.said()}")
        self._write(one.move, **leaves.record())
        one.leaves = None
        self._start(one)

    def _start(self, one: _UnderWay) -> None:
        """Start an engine on the free GPUs: the receiver's, or the donor's where that has just failed."""
        held = self._failed.held()
        policy = next((name for name in (one.move.receiver, one.move.donor) if name not in held), None)
        if policy is None:
            return
        one.policy = policy
        try:
            process = self.policies[policy].start_one("engine", one.gpus)
        except AsyncRLError as error:
            self._give_up(one, f"an engine of {called(policy)} could not be started: {error}")
            return
        if process is None:
            self._give_up(one, f"no machine has room for an engine of {called(policy)}")
            return
        one.starts = Growth(process, process.start_deadline(self.roles.config.run.start_timeout_s))

    def _grow(self, one: _UnderWay, starts: Growth) -> bool:
        """Have an engine take part once it serves; True then."""
        process = starts.process
        if starts.serves:
            self.policies[one.policy].admit("engine", process)
            self._failed.succeeded(one.policy)
            counts = ", ".join(f"{called(name)} {count}" for name, count in self.counts.items())
            self.say(
                f"scale.engine: {process.name} takes part for {called(one.policy)}; engines now: {counts}"
            )
            self._write(one.move, name=process.name, takes_part=called(one.policy))
            self._done(one)
            return True
        if failure := starts.failure():
            self.roles.process_group.forget(process)
            one.starts = None
            self._give_up(one, f"{process.name} {failure}")
        return False

    def _give_up(self, one: _UnderWay, why: str) -> None:
        """Have a policy start no engine for a while. The donor of a move gets its engine back."""
        policy = called(one.policy)
        wait_s = self._failed.failed(one.policy)
        self.say(f"scale.engine: {policy} gets no engine for {wait_s:g} s: {why}")
        self._write(one.move, policy=policy, failed=why, wait_s=wait_s)

    def _done(self, one: _UnderWay) -> None:
        """Begin to observe anew."""
        now = time.monotonic()
        if one.policy == one.move.receiver:
            self._changes |= {one.move.donor: Change(now, -1), one.move.receiver: Change(now, 1)}
        self._under_way, self._window = None, []

    @property
    def counts(self) -> dict[str, int]:
        """Engines that take part, by policy."""
        return {name: len(policy.engines) for name, policy in self.policies.items()}

    def _write(self, move: Move, **more: Any) -> None:
        engines = {called(name): count for name, count in self.counts.items()}
        about = {"role": "engine", "from": called(move.donor), "to": called(move.receiver)}
        write_event(self.folder, about | more | {"engines": engines})

    async def _observe(self, stats: Mapping[str, Any]) -> Moment:
        engines = [engine for policy in self.policies.values() for engine in policy.engines]
        found = await states("engine", engines, self.roles.credentials)
        loads = {
            name: engine_load(
                [found.get(engine.name) for engine in policy.engines], policy.config.engine.max_num_seqs
            )
            for name, policy in self.policies.items()
        }
        answered = {name: load for name, load in loads.items() if load is not None}
        waits = trainer_waits(self.roles.config.train.schedule, stats)
        return Moment(time.monotonic(), stats["version"], waits, answered)


def engine_load(said: list[dict[str, Any] | None], max_num_seqs: int) -> EngineLoad | None:
    """Return the load of a policy's engines by what each says of itself; None where one has not answered, whose work is
    with the others then, or is paused for new weights, where all requests wait."""
    found = [state for state in said if state is not None and not state["paused"]]
    if not found or len(found) < len(said):
        return None
    return EngineLoad(
        len(found),
        sum(state["running"] for state in found),
        sum(state["waiting"] for state in found),
        max_num_seqs,
        sum(state["kv_usage"] for state in found) / len(found),
    )
