"""Engines that sample other tokens than the policy's: each is started again once, then the run goes on without it.

The trainer finds them (`asyncrl.train.features.faulty_engine`) and has the buffer keep the workers from leasing, whose
groups they spoiled. These are readmitted when no worker can reach the engine as it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from asyncrl.errors import StopError
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.launch.roles.policy_roles import PolicyRoles
from asyncrl.launch.roles.process_changes import HEARD_S
from asyncrl.launch.roles.roles import Roles
from asyncrl.services.buffer.client import BufferClient

WHY = "sampled other tokens than its weights would"


class FaultyEngines:
    """Deals with the faulty engines of a run."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self._started_again: set[str] = set()
        """Names of processes."""
        self._left_at: dict[str, float] = {}
        """By its address, when an engine was left out that is none of the run's, or no longer."""

    async def handle(self, policy: PolicyRoles, buffer: BufferClient, faulty: Mapping[str, str]) -> list[str]:
        """Deal with a policy's faulty engines, given with the reasons; return what to tell the user.

        Raises `StopError` where starting one again has not helped, and the run cannot go on without it.
        """
        lines = []
        for url, reason in faulty.items():
            server = url.partition("/policies/")[0]
            process = next(
                (one for one in self.roles.every_engine if server in (one.url, *one.earlier_urls)), None
            )
            if process is None:
                gone, line = self._leave_out(policy, server, reason)
            else:
                gone, line = True, self._end(policy, process, reason)
            lines += [line] if line else []
            if gone:
                await buffer.readmit_users(url)
        return lines

    def _end(self, policy: PolicyRoles, process: ManagedProcess, reason: str) -> str:
        """Start an engine again, or end it where that has not helped; return what to say."""
        if process.name not in self._started_again:
            self._started_again.add(process.name)
            self.roles.supervisor.start_again(process, WHY)
            return f"{process.name} {WHY}, and is started again: {reason}"
        if not policy.can_leave(process):
            raise StopError(
                f"{process.name} {WHY}, also after it was started again, and the run has no other one: {reason}. Its "
                "machine, its GPU or its software is at fault; mend it, and go on with --resume"
            )
        policy.leave(process)
        return f"{process.name} {WHY}, also after it was started again; the run goes on without it: {reason}"

    def _leave_out(self, policy: PolicyRoles, url: str, reason: str) -> tuple[bool, str]:
        """Have nobody use an engine that has joined the run; return whether everybody has heard, and what to say."""
        if url not in policy.retired:
            if policy is not self.roles.main:
                raise StopError(
                    f"the engine at {url}, which has joined policy {policy.name!r}, {WHY}: {reason}"
                )
            self._left_at[url] = time.monotonic()
            policy.retired.append(url)
            return False, f"the engine at {url}, which has joined, {WHY}, and takes part no longer: {reason}"
        # One that the run itself has retired is not noted before.
        left_at = self._left_at.setdefault(url, time.monotonic())
        return time.monotonic() - left_at > HEARD_S, ""
