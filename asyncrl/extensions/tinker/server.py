"""What the routes of `service` call: requests are written down, carried out by others, and their answers found.

`training` and `sampling` carry requests out; `ledger` keeps them. A client is told of another's things that they are
not there.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker import messages
from asyncrl.extensions.tinker.checkpoints import SAMPLER_WEIGHTS, Checkpoints, expiry
from asyncrl.extensions.tinker.clients import OWNER, Client, visible
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.listings import Listings
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.tables import (
    CREATE,
    PROTO,
    SAMPLE,
    UNLOAD,
    UNLOADING,
    PolicyRecord,
    Request,
)
from asyncrl.extensions.tinker.training import REMOVED, Training
from asyncrl.extensions.tinker.waiting import Answers
from asyncrl.extensions.tinker.wire import MEDIA_TYPE
from asyncrl.http_checks import JSON, wrong_fields

WAIT_S = 20.0
"""How long an answer is waited for; the SDK gives up after 45 s and asks again."""
KEEP_S = 24 * 3600.0
GRACE_S = 900.0
"""After a server's start, in which clients find it again: what they send is sent again for 300 s."""
MOST_WAITING = 4096
"""Requests of one session that wait."""
LARGE_BYTES = 2**16
"""A body of more is written down while others are answered."""
T = TypeVar("T", bound=messages.Message)


class Server:
    """What the routes call.

    name: of the base model. tokenizer: where clients find its tokenizer, "" for a hub model's own. keep_s: how long a
    policy is kept after its client was heard of last.
    """

    def __init__(
        self, training: Training, sampling: Sampling, answers: Answers, tokenizer: str, keep_s: float = KEEP_S
    ) -> None:
        self.training, self.sampling, self.answers, self.tokenizer = training, sampling, answers, tokenizer
        self.keep_s, self.started = keep_s, stamp_s()
        self.listings = Listings(self.ledger)

    @property
    def name(self) -> str:
        return self.training.name

    @property
    def checkpoints(self) -> Checkpoints:
        return self.training.checkpoints

    @property
    def ledger(self) -> Ledger:
        return self.checkpoints.ledger

    async def receive(self, asked: Request, message: messages.Sample | None = None) -> None:
        """Write a request down and have it carried out. message: of one for samples, as it was read."""
        if len(asked.body) > LARGE_BYTES:
            is_new = await asyncio.to_thread(self.ledger.receive, asked)
        else:
            is_new = self.ledger.receive(asked)
        if is_new and asked.kind == SAMPLE:
            self.sampling.submit(asked, message)
        elif is_new:
            self.training.submit(asked)

    def is_new(self, asked: Request) -> bool:
        """Return whether a request has not been received before."""
        return self.ledger.request(asked.owner, asked.number) is None

    def admit(self, session: str, client: Client) -> None:
        """Raise `TooManyError` for a new request of a session or client that has too many waiting."""
        if self.ledger.count_unanswered(session) >= MOST_WAITING:
            raise TooManyError(f"{MOST_WAITING} requests of this session wait already")
        most = client.requests_in_flight
        if most is not None and self.listings.in_flight(client.name) >= most:
            raise TooManyError(f"{client.name} has {most} requests in flight already (requests_in_flight)")

    def need_tokens(self, client: Client, kind: str) -> None:
        """Raise `QuotaError` where a client has used up its tokens of today. kind: "trained" or "sampled"."""
        quota = f"{kind}_tokens_a_day"
        most, used = getattr(client, quota), getattr(self.listings.today(client.name), kind)
        if most is not None and used >= most:
            raise QuotaError(
                f"{client.name} has used up its {quota}: {used} of {most}; go on after 00:00 UTC, or have it raised in "
                "the file of --keys"
            )

    def is_unloading(self, policy: str) -> bool:
        """Return whether a policy is to be unloaded, or has been."""
        return self.ledger.request(f"{policy}{UNLOADING}", 0) is not None

    def unload(self, policy: str, client: Client = OWNER) -> dict[str, Any]:
        """Receive that a policy's state is to be deleted; return what names the request."""
        self.policy(policy, client)
        asked = Request(f"{policy}{UNLOADING}", 0, UNLOAD, b"")
        if self.ledger.receive(asked):
            self.training.submit(asked)
        return {"request_id": asked.id, "model_id": policy}

    def unload_deserted(self) -> None:
        """Have the policies unloaded whose clients are done, or have not been heard of for too long."""
        for policy in self.ledger.deserted(self.over_before()):
            if not self.is_unloading(policy):
                self.unload(policy)

    def over_before(self) -> float:
        """Return the moment before which a session must have been heard of last to be over. A server that was down is
        given time to be called again."""
        now = stamp_s()
        return now - self.keep_s if now >= self.started + GRACE_S else 0.0

    def tidy(self) -> None:
        """Delete what nobody can ask for any more."""
        with self.training.lane:
            self.checkpoints.tidy(self.over_before())

    def copy(self, message: messages.CopyWeights, client: Client, key: str) -> str:
        """Copy a checkpoint; return the copy's path. key: that of the request, by which it is done once."""
        source = self.checkpoints.find(message.source_path, client.name)
        policy = f"copy-{hashlib.sha256(f'{client.name}:{key}'.encode()).hexdigest()[:32]}"
        copy = replace(
            source, policy=policy, created=stamp_s(), expires=expiry(message.ttl_seconds), public=False
        )
        if self.ledger.checkpoint(policy, copy.kind, copy.name) is None:
            made = self.ledger.policy(source.policy)
            assert made is not None
            now = copy.created
            record = PolicyRecord(policy, "", made.settings, 0, now, now, None, now, client.name)
            with self.training.lane:
                self.checkpoints.copy(source, copy)
                with self.ledger.together():
                    self.ledger.add_policy(record)
                    self.ledger.add_checkpoint(copy)
        return copy.path

    def policy(self, name: str, client: Client) -> PolicyRecord:
        """Return a policy. Raises `InputError` for an unknown one."""
        found = self.ledger.policy(name)
        if found is None or not visible(client.name, found.client):
            raise InputError(f"model_id: there is no policy {name!r}")
        return found

    async def of_policy(
        self, policy: str, number: int, kind: str, body: bytes, client: Client
    ) -> dict[str, Any]:
        """Receive a request of a policy; return what names it."""
        record = self.policy(policy, client)
        if not 1 <= number < 2**31:
            raise InputError(f"seq_id: must be from 1 to below 2**31, got {number}")
        asked = Request(policy, number, kind, body)
        if self.is_new(asked):
            if record.removed is not None or self.is_unloading(policy):
                raise InputError(f"model_id: {policy} {REMOVED}")
            self.need_tokens(client, "trained")
            self.admit(record.session, client)
        await self.receive(asked)
        return {"request_id": asked.id, "model_id": policy}

    async def creating(self, session: str, slot: int, body: bytes, client: Client) -> dict[str, Any]:
        """Receive a request that makes a policy."""
        self.need_session(session, client)
        asked = Request(f"{session}:create:{slot}", 0, CREATE, body)
        if self.is_new(asked):
            self.need_unfinished(session)
            most = client.training_clients
            if most is not None and self.listings.trained_at_once(client.name) >= most:
                raise QuotaError(
                    f"{client.name} has {most} training clients already (training_clients); end one by "
                    "service.close('success') or unload_model"
                )
            self.admit(session, client)
        await self.receive(asked)
        return {"request_id": asked.id}

    def need_session(self, session: str, client: Client) -> None:
        """Note that a session's client is there. Raises `InputError` for an unknown one."""
        self.session(session, client)
        self.ledger.seen(session)

    def session(self, name: str, client: Client) -> dict[str, Any]:
        """Return a session. Raises `InputError` for an unknown one."""
        found = self.ledger.session(name)
        if found is None or not visible(client.name, found["client"]):
            raise InputError(f"session_id: there is no session {name!r}")
        return found

    def need_unfinished(self, session: str) -> None:
        """Raise `FinishedError` for a session that is finished."""
        if (found := self.ledger.session(session)) is not None and found["finished"] is not None:
            raise FinishedError(f"session_id: session {session} is finished; begin another")

    def sampler(self, name: str, client: Client) -> dict[str, Any]:
        """Return a sampler. Raises `InputError` for an unknown one."""
        found = self.ledger.sampler(name)
        session = None if found is None else self.ledger.session(found["session"])
        if found is None or session is None or not visible(client.name, session["client"]):
            raise InputError(f"sampling_session_id: there is no sampler {name!r}")
        return found

    def sampler_of(self, message: messages.CreateSampler, client: Client) -> str:
        """Make a sampler, of a checkpoint or the base model; return its name. Raises `InputError`."""
        self.need_session(message.session_id, client)
        name, adapter = f"{message.session_id}:sample:{message.sampling_session_seq_id}", ""
        if self.ledger.sampler(name) is not None:
            return name
        self.need_unfinished(message.session_id)
        if message.model_path is not None:
            checkpoint = self.checkpoints.find(message.model_path, client.name, SAMPLER_WEIGHTS)
            adapter = self.checkpoints.adapter(checkpoint)
        elif message.base_model is not None and message.base_model != self.name:
            raise InputError(f"base_model: this server has {self.name!r}, got {message.base_model!r}")
        self.ledger.add_sampler(name, message.session_id, adapter, message.model_path or "")
        return name

    async def sample(self, body: bytes, client: Client) -> dict[str, Any]:
        """Receive a request for samples."""
        message = read(messages.Sample, body)
        if message.sampling_session_id is None or message.seq_id is None:
            raise InputError("sampling_session_id, seq_id: must be given")
        sampler = self.sampler(message.sampling_session_id, client)
        asked = Request(message.sampling_session_id, message.seq_id, SAMPLE, body)
        if self.is_new(asked):
            self.need_tokens(client, "sampled")
            self.admit(sampler["session"], client)
        await self.receive(asked, message)
        names = [f"{asked.id}/{index}" for index in range(message.num_samples)]
        return {"request_id": asked.id, "sample_sequence_ids": names}

    def is_own(self, request_id: str, client: Client) -> bool:
        """Return whether a client may know of a request: those of its sessions."""
        session = self.ledger.session(request_id.partition(":")[0])
        return session is not None and visible(client.name, session["client"])

    async def retrieve(self, request_id: str, client: Client) -> Response:
        """Return a request's answer, 408 where there is none within `WAIT_S`, 410 for an unknown one."""
        owner, _, number = request_id.rpartition("/")
        if not number.isdecimal() or len(number) > 18:
            raise InputError(f"request_id: {request_id!r} names no request")
        found = self.ledger.request(owner, int(number)) if self.is_own(request_id, client) else None
        if found is not None and found.answer is None:
            await self.answers.wait(request_id, WAIT_S)
            found = self.ledger.request(owner, int(number))
        if found is None:
            return JSONResponse({"error": f"there is no request {request_id}"}, 410)
        if found.answer is None:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, 408)
        return Response(found.answer, media_type=MEDIA_TYPE if found.form == PROTO else JSON)

    def cancel(self, request_id: str, client: Client) -> None:
        """Give a request for samples up."""
        if self.is_own(request_id, client):
            self.sampling.cancel(request_id)


class FinishedError(InputError):
    """A session is finished."""


class QuotaError(InputError):
    """A client has all that it may have; the same request again does not help."""


class TooManyError(InputError):
    """A session or client has too many requests waiting; it is to send this one again."""


def read(kind: type[T], body: bytes) -> T:
    """Return a message. Raises `InputError` naming the fields that are wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InputError(wrong_fields(error.errors())) from error
