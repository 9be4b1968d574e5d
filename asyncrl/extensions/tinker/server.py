"""What the routes of `service` call: requests are written down, carried out by others, and their answers found.

`training` and `sampling` carry requests out; `ledger` keeps them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker import messages
from asyncrl.extensions.tinker.checkpoints import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    WEIGHTS,
    Checkpoints,
    expiry,
)
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.tables import (
    CREATE,
    PROTO,
    SAMPLE,
    UNLOAD,
    UNLOADING,
    Checkpoint,
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
TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}
"""What clients call the kinds of checkpoints."""
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

    @property
    def name(self) -> str:
        return self.training.name

    @property
    def checkpoints(self) -> Checkpoints:
        return self.training.checkpoints

    @property
    def ledger(self) -> Ledger:
        return self.checkpoints.ledger

    def receive(self, session: str, asked: Request) -> None:
        """Write a request down and have it carried out. Raises `InputError`, `TooManyError`."""
        if self.is_new(asked) and self.ledger.count_unanswered(session) >= MOST_WAITING:
            raise TooManyError(f"{MOST_WAITING} requests of this session wait already")
        if self.ledger.receive(asked):
            (self.sampling if asked.kind == SAMPLE else self.training).submit(asked)

    def is_new(self, asked: Request) -> bool:
        """Return whether a request has not been received before."""
        return self.ledger.request(asked.owner, asked.number) is None

    def is_unloading(self, policy: str) -> bool:
        """Return whether a policy is to be unloaded, or has been."""
        return self.ledger.request(f"{policy}{UNLOADING}", 0) is not None

    def unload(self, policy: str) -> dict[str, Any]:
        """Receive that a policy's state is to be deleted; return what names the request."""
        asked = Request(f"{policy}{UNLOADING}", 0, UNLOAD, b"")
        self.receive(self.policy(policy).session, asked)
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

    def copy(self, message: messages.CopyWeights, key: str) -> str:
        """Copy a checkpoint; return the copy's path. key: that of the request, by which it is done once."""
        source = self.checkpoints.find(message.source_path)
        policy = f"copy-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
        copy = replace(
            source, policy=policy, created=stamp_s(), expires=expiry(message.ttl_seconds), public=False
        )
        if self.ledger.checkpoint(policy, copy.kind, copy.name) is None:
            settings = self.policy(source.policy).settings
            with self.training.lane:
                self.checkpoints.copy(source, copy)
                with self.ledger.together():
                    self.ledger.add_policy(
                        PolicyRecord(policy, "", settings, 0, copy.created, copy.created, None, copy.created)
                    )
                    self.ledger.add_checkpoint(copy)
        return copy.path

    def policy(self, name: str) -> PolicyRecord:
        """Return a policy. Raises `InputError` for an unknown one."""
        found = self.ledger.policy(name)
        if found is None:
            raise InputError(f"model_id: there is no policy {name!r}")
        return found

    def of_policy(self, policy: str, number: int, kind: str, body: bytes) -> dict[str, Any]:
        """Receive a request of a policy; return what names it."""
        record = self.policy(policy)
        if number < 1:
            raise InputError(f"seq_id: must be at least 1, got {number}")
        asked = Request(policy, number, kind, body)
        if self.is_new(asked) and (record.removed is not None or self.is_unloading(policy)):
            raise InputError(f"model_id: {policy} {REMOVED}")
        self.receive(record.session, asked)
        return {"request_id": asked.id, "model_id": policy}

    def creating(self, session: str, slot: int, body: bytes) -> dict[str, Any]:
        """Receive a request that makes a policy."""
        self.need_session(session)
        asked = Request(f"{session}:create:{slot}", 0, CREATE, body)
        if self.is_new(asked):
            self.need_unfinished(session)
        self.receive(session, asked)
        return {"request_id": asked.id}

    def need_session(self, session: str) -> None:
        """Note that a session's client is there. Raises `InputError` for an unknown one."""
        if not self.ledger.seen(session):
            raise InputError(f"session_id: there is no session {session!r}")

    def need_unfinished(self, session: str) -> None:
        """Raise `FinishedError` for a session that is finished."""
        if (found := self.ledger.session(session)) is not None and found["finished"] is not None:
            raise FinishedError(f"session_id: session {session} is finished; begin another")

    def sampler_of(self, message: messages.CreateSampler) -> str:
        """Make a sampler, of a checkpoint or the base model; return its name. Raises `InputError`."""
        self.need_session(message.session_id)
        name, adapter = f"{message.session_id}:sample:{message.sampling_session_seq_id}", ""
        if self.ledger.sampler(name) is not None:
            return name
        self.need_unfinished(message.session_id)
        if message.model_path is not None:
            checkpoint = self.checkpoints.find(message.model_path, SAMPLER_WEIGHTS)
            adapter = self.checkpoints.adapter(checkpoint)
        elif message.base_model is not None and message.base_model != self.name:
            raise InputError(f"base_model: this server has {self.name!r}, got {message.base_model!r}")
        self.ledger.add_sampler(name, message.session_id, adapter, message.model_path or "")
        return name

    def sample(self, body: bytes) -> dict[str, Any]:
        """Receive a request for samples."""
        message = read(messages.Sample, body)
        if message.sampling_session_id is None or message.seq_id is None:
            raise InputError("sampling_session_id, seq_id: must be given")
        sampler = self.ledger.sampler(message.sampling_session_id)
        if sampler is None:
            raise InputError(f"sampling_session_id: there is no sampler {message.sampling_session_id!r}")
        asked = Request(message.sampling_session_id, message.seq_id, SAMPLE, body)
        self.receive(sampler["session"], asked)
        names = [f"{asked.id}/{index}" for index in range(message.num_samples)]
        return {"request_id": asked.id, "sample_sequence_ids": names}

    async def retrieve(self, request_id: str) -> Response:
        """Return a request's answer, 408 where there is none within `WAIT_S`, 410 for an unknown one."""
        owner, _, number = request_id.rpartition("/")
        if not number.isdecimal() or len(number) > 18:
            raise InputError(f"request_id: {request_id!r} names no request")
        found = self.ledger.request(owner, int(number))
        if found is not None and found.answer is None:
            await self.answers.wait(request_id, WAIT_S)
            found = self.ledger.request(owner, int(number))
        if found is None:
            return JSONResponse({"error": f"there is no request {request_id}"}, 410)
        if found.answer is None:
            waiting = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(waiting, 408)
        return Response(found.answer, media_type=MEDIA_TYPE if found.form == PROTO else JSON)

    def info(self, policy: str) -> dict[str, Any]:
        """Return what the SDK asks of a policy."""
        record = self.policy(policy)
        model = {"arch": self.training.base.architecture, "model_name": self.name}
        if self.tokenizer:
            model["tokenizer_id"] = self.tokenizer
        return {
            "type": "get_info",
            "model_data": model,
            "model_id": policy,
            "model_name": self.name,
            "is_lora": True,
            "lora_rank": record.settings["rank"],
        }

    def run_of(self, record: PolicyRecord) -> dict[str, Any]:
        """Return a policy as the SDK's `TrainingRun`."""
        own = self.ledger.checkpoints(record.id)
        newest = {
            kind: next((shown(one) for one in own if one.kind == kind), None)
            for kind in (WEIGHTS, SAMPLER_WEIGHTS)
        }
        return {
            "training_run_id": record.id,
            "base_model": record.settings["base_model"],
            "model_owner": "local",
            "is_lora": True,
            "lora_rank": record.settings["rank"],
            "last_request_time": moment(record.used),
            "last_checkpoint": newest[WEIGHTS],
            "last_sampler_checkpoint": newest[SAMPLER_WEIGHTS],
            "user_metadata": record.about,
        }

    def state(self) -> dict[str, Any]:
        """Return what the server does, for people and programs that watch it."""
        return {
            "model": self.name,
            "sessions": len(self.ledger.sessions()),
            "policies": self.ledger.count_trained(),
            "policies_in_memory": len(self.training.active),
            "training_requests_waiting": len(self.training.queue),
            "sampling_requests_waiting": self.sampling.num_waiting,
            "steps": self.training.steps,
            "tokens_trained": self.training.tokens,
            "tokens_sampled": self.sampling.tokens,
            "engine_serves": self.sampling.engine is not None,
        }


class FinishedError(InputError):
    """A session is finished."""


class TooManyError(InputError):
    """A session has too many requests waiting; it is to send this one again."""


def read(kind: type[T], body: bytes) -> T:
    """Return a message. Raises `InputError` naming the fields that are wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InputError(wrong_fields(error.errors())) from error


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def shown(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as the SDK's."""
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": TYPES[checkpoint.kind],
        "time": moment(checkpoint.created),
        "tinker_path": checkpoint.path,
        "size_bytes": checkpoint.bytes,
        "public": checkpoint.public,
        "user_metadata": checkpoint.about,
        "expires_at": None if checkpoint.expires is None else moment(checkpoint.expires),
    }
