"""The members of a job: its description by the launcher, and engines and environments that joined it later.

Nothing here is on disk. Launcher and members repeat their calls every few seconds, so that a buffer that has restarted
soon knows them again.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import Field, field_validator

from asyncrl.credentials import Caller, Credentials, may_join
from asyncrl.data.fields import check_json
from asyncrl.errors import ConfigError, ConflictError, UnavailableError
from asyncrl.services.buffer.messages import Call, documented, read
from asyncrl.services.http.app import caller_of

MEMBER_S = 30.0
"""A member that does not repeat its call for this long no longer counts."""
MAX_MEMBERS = 4096
PLAYERS = {"rollout": "guest", "gateway": "gateway"}
"""Roles that lease groups, and what those are called that give no name."""

Url = Annotated[str, Field(max_length=512, pattern=r"^https?://")]


class Describe(Call):
    """`config` is the run's configuration, `model` a path or name that joining processes can load."""

    config: dict[str, Any]
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    weights_dir: Annotated[str, Field(max_length=4096)]
    engines: list[Url] = Field(max_length=MAX_MEMBERS)
    envs: list[Url] = Field(max_length=MAX_MEMBERS)
    policies: list[Annotated[str, Field(max_length=4096)]] = Field(default_factory=list, max_length=64)
    """Further policies, as `asyncrl serve rollout --policy` takes them."""
    beside: dict[Annotated[str, Field(max_length=64)], Url] = Field(default_factory=dict, max_length=64)
    """Where the processes are that the workers have for themselves, by role."""
    moved: dict[Url, Url] = Field(default_factory=dict, max_length=MAX_MEMBERS)
    """Where engines and environments are now that were at another address before."""
    added: dict[Literal["engine", "env"], list[Url]] = Field(default_factory=dict)
    """Those that were started since, by role."""
    retired: list[Url] = Field(default_factory=list, max_length=MAX_MEMBERS)
    """Those that take nothing new."""

    @field_validator("config")
    @classmethod
    def _answerable(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse values that the answer to a joining process could not carry."""
        check_json(value, "config")
        return value


class Join(Call):
    role: Literal["engine", "env"]
    url: Url


class Enroll(Call):
    """`name` is the worker's name in the ledger, or the gateway's, which leases as one."""

    role: Literal["engine", "env", "rollout", "gateway"]
    name: Annotated[str, Field(max_length=128)] = ""


class Leave(Call):
    url: Url


class Members:
    """The job and its members, as known to a buffer that started at `start`. Monotonic seconds."""

    def __init__(self, start: float) -> None:
        self.described: Describe | None = None
        self._start = start
        self._left: set[str] = set()
        self._joined: dict[str, tuple[str, float, Caller]] = {}

    def join(self, role: str, url: str, caller: Caller, now: float) -> None:
        """Raises `ConfigError` for another role than the caller's, `ConflictError` for the address of another."""
        if caller.role not in ("run", role):
            raise ConfigError(f"{caller} cannot join as {role}")
        self._check_own(url, caller)
        if url not in self._joined and len(self._joined) >= MAX_MEMBERS:
            raise UnavailableError(f"the job has {MAX_MEMBERS} members already")
        self._left.discard(url)
        self._joined[url] = (role, now, caller)

    def leave(self, url: str, caller: Caller) -> None:
        """Raises `ConflictError` for the address of another."""
        self._check_own(url, caller)
        if self._joined.pop(url, None) is not None and len(self._left) < MAX_MEMBERS:
            self._left.add(url)

    def _check_own(self, url: str, caller: Caller) -> None:
        if url in self._joined and caller.role != "run" and self._joined[url][2] != caller:
            raise ConflictError(f"{url} was joined by another member")

    def job(self, now: float, caller: Caller, credentials: Credentials) -> dict[str, Any]:
        """Return the job with all members that have called lately. Raises `UnavailableError` without a job.

        `settled` is False until every member has had the time to call; `left` are those that have left. `tokens` are
        those with which the caller calls members, by address. credentials: the run's.
        """
        if self.described is None:
            raise UnavailableError("no job has been described here (yet)", retry_after_s=2.0)
        self._joined = {u: member for u, member in self._joined.items() if now - member[1] <= MEMBER_S}
        joined: dict[str, list[str]] = {"engine": [], "env": []}
        tokens: dict[str, str] = {}
        own = self._own_urls()
        for url, (role, _, member) in self._joined.items():
            joined[role].append(url)
            # Nobody is told to call the run's own processes with the token of a member that claims their address.
            if member.name and url not in own and (token := credentials.bearer_for(caller, role, member)):
                tokens[url] = token
        settled = now - self._start > MEMBER_S
        return self.described.model_dump() | {
            "joined": joined,
            "tokens": tokens,
            "settled": settled,
            "left": sorted(self._left),
        }

    def _own_urls(self) -> set[str]:
        """Return where processes are that the launcher has started."""
        job = self.described
        if job is None:
            return set()
        added = (url for urls in job.added.values() for url in urls)
        return {*job.engines, *job.envs, *job.moved, *job.moved.values(), *added}


def add_member_routes(app: FastAPI, credentials: Credentials) -> None:
    """Add `/v1/job`, `/v1/enroll`, `/v1/join` and `/v1/leave`."""
    members = Members(time.monotonic())

    @app.post("/v1/job", openapi_extra=documented(Describe))
    async def describe(request: Request) -> dict[str, bool]:
        """Describe the job; for the launcher."""
        members.described = await read(request, Describe)
        return {"known": True}

    @app.get("/v1/job")
    async def job(request: Request) -> dict[str, Any]:
        """The configuration, the model, and where engines and environments are."""
        return members.job(time.monotonic(), caller_of(request), credentials)

    @app.post("/v1/enroll", openapi_extra=documented(Enroll))
    async def enroll(request: Request) -> dict[str, str]:
        """Issue credentials to a process that joins: for one role and one name."""
        body = await read(request, Enroll)
        if not may_join(caller_of(request), body.role):
            raise ConfigError(
                f"role: this join token is not for {body.role!r}; whoever has the run makes one that is by "
                f"`asyncrl runs join-token RUN --role {body.role}`"
            )
        if body.role in ("engine", "env"):
            return {"credentials": credentials.issue(body.role, secrets.token_hex(8), joins=True).text}
        # The suffix is chosen here, so that no worker gets the name, and with it the leases, of another.
        name = f"{body.name or PLAYERS[body.role]}-{secrets.token_hex(3)}"
        issued = credentials.issue("worker", name, joins=True)
        # A gateway steps no environment and serves nobody of the run.
        return {"credentials": (issued.only("buffer", "engine") if body.role == "gateway" else issued).text}

    @app.post("/v1/join", openapi_extra=documented(Join))
    async def join(request: Request) -> dict[str, float]:
        """Join; to be repeated well before `expires_in_s`."""
        body = await read(request, Join)
        members.join(body.role, body.url, caller_of(request), time.monotonic())
        return {"expires_in_s": MEMBER_S}

    @app.post("/v1/leave", openapi_extra=documented(Leave))
    async def leave(request: Request) -> dict[str, bool]:
        """Leave."""
        members.leave((await read(request, Leave)).url, caller_of(request))
        return {"left": True}
