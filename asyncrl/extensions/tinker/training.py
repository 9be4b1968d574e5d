"""Carries out what clients ask of their policies: one request at a time, each policy's in the order of their numbers.

    received  ->  its turn  ->  carried out  ->  answer and effect written down together
    a server that was killed: the policy's state file, then the requests after it once more

A gradient is nowhere but in memory, so the requests that it came from are kept until a step has been taken and its
result is in the state file. Carried out again they give the same gradient, bit by bit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import torch
import xxhash

from asyncrl.clock import stamp_s
from asyncrl.disk import FAULTS
from asyncrl.errors import InputError
from asyncrl.extensions.tinker.checkpoints import WEIGHTS, Checkpoints
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.messages import (
    AdamParams,
    CreateModel,
    LoadWeights,
    LoraSettings,
    OptimStep,
)
from asyncrl.extensions.tinker.policies import AdapterSettings, BaseModel, TrainedAdapter
from asyncrl.extensions.tinker.queue import Queue
from asyncrl.extensions.tinker.ranks import LostRankError
from asyncrl.extensions.tinker.saving import save_external, save_for_sampler, save_weights
from asyncrl.extensions.tinker.tables import (
    CREATE,
    FAILED,
    FORWARD_BACKWARD,
    LOAD,
    OPTIM_STEP,
    PROTO,
    SAVE,
    SAVE_EXTERNAL,
    SAVE_FOR_SAMPLER,
    UNLOAD,
    UNLOADING,
    PolicyRecord,
    Request,
)
from asyncrl.extensions.tinker.waiting import Answers
from asyncrl.extensions.tinker.wire import forward_backward_output, read_request

log = logging.getLogger("asyncrl.tinker")

KINDS = (CREATE, FORWARD_BACKWARD, OPTIM_STEP, SAVE, SAVE_FOR_SAMPLER, SAVE_EXTERNAL, LOAD, UNLOAD)
REMOVED = (
    "was unloaded, or its client was not heard of for too long (--keep-policies-h), and has no state any more; go on "
    "from a checkpoint"
)
DEFAULT_RANK = 32


class Training:
    """The policies and their queue.

    name: of the base model, as clients say it. most_rank: of an adapter. most_active: policies in memory at once; the
    others wait in their files.
    """

    def __init__(
        self,
        base: BaseModel,
        checkpoints: Checkpoints,
        answers: Answers,
        name: str,
        most_rank: int,
        most_active: int,
    ) -> None:
        self.base, self.checkpoints, self.answers, self.name = base, checkpoints, answers, name
        self.most_rank, self.most_active = most_rank, most_active
        self.steps = self.tokens = 0
        self.active: OrderedDict[str, TrainedAdapter] = OrderedDict()
        """The policies in memory, the one used last at the end."""
        self.lane = threading.Lock()
        """Held while a request is carried out, or files are tidied up."""
        self.queue = Queue(self.ledger)
        self._more = asyncio.Event()
        for request in self.ledger.unanswered(KINDS):
            self.submit(request)

    @property
    def ledger(self) -> Ledger:
        return self.checkpoints.ledger

    def submit(self, request: Request) -> None:
        """Queue a request that has been written down."""
        self.queue.add(request)
        self._more.set()

    async def run(self) -> None:
        """Carry out requests for ever."""
        while True:
            if (request := self.queue.next()) is None:
                self._more.clear()
                await self._more.wait()
                continue
            await asyncio.to_thread(self.carry_out, request)
            self.answers.arrived(request.id)

    def carry_out(self, request: Request) -> None:
        """Carry out one request, and write its answer down with its effect."""
        try:
            with self.lane:
                self._done(request)
        except InputError as error:
            self._fail(request, str(error), "user")
        except torch.OutOfMemoryError as error:
            self._forget(request.owner)
            self._fail(request, f"not enough memory for this request: {str(error).splitlines()[0]}", "server")
        except (*FAULTS, LostRankError):
            # Of this machine, not of the request: it is carried out when the server is started again.
            raise
        except Exception as error:
            # One client's request must not end what others have here, nor be tried again for ever.
            log.exception("request %s", request.id)
            self._forget(request.owner)
            self._fail(request, f"the server failed: {type(error).__name__}: {error}", "server")
        self.queue.done(request)

    def _forget(self, policy: str) -> None:
        """Take a policy out of memory, where a request that failed may have left half of its effect: it is read again
        from what is written down."""
        if (half := self.active.pop(policy, None)) is not None:
            half.remove()

    def _fail(self, request: Request, reason: str, category: str) -> None:
        self.ledger.answer(request, _failure(reason, category), FAILED, drop_body=True)

    def _done(self, request: Request) -> None:
        if request.kind == CREATE:
            self._create(request)
            return
        if request.kind == UNLOAD:
            self._unload(request)
            return
        policy = self._activated(request.owner)
        if request.kind == FORWARD_BACKWARD:
            self._forward_backward(policy, request)
        elif request.kind == OPTIM_STEP:
            self._step(policy, request)
        elif request.kind == LOAD:
            message = LoadWeights.model_validate_json(request.body)
            self._load(policy, message, self._record(request).client)
            self._keep(
                policy, request, {"type": "load_weights", "path": message.path, "model_id": request.owner}
            )
        elif request.kind == SAVE:
            save_weights(self.checkpoints, policy, request)
        elif request.kind == SAVE_EXTERNAL:
            save_external(self.checkpoints, policy, request, self.name)
        else:
            save_for_sampler(self.checkpoints, policy, request)

    def _create(self, request: Request) -> None:
        """Make a policy: a new adapter, or that of a checkpoint."""
        body = json.loads(request.body)
        loaded = "path" in body
        message = (LoadWeights if loaded else CreateModel).model_validate(body)
        policy_id = f"{message.session_id}:train:{message.model_seq_id}"
        session = self.ledger.session(str(message.session_id))
        client = "" if session is None else session["client"]
        if isinstance(message, LoadWeights):
            checkpoint = self.checkpoints.find(message.path, client, WEIGHTS)
            self._check_name(message.base_model or self.name)
            written = self.checkpoints.settings_file(checkpoint.policy, checkpoint.name).read_text()
            settings = AdapterSettings(**json.loads(written))
        else:
            self._check_name(message.base_model)
            if message.optimizer_config.type != "adamw":
                raise InputError(
                    f"optimizer_config.type: must be 'adamw', got {message.optimizer_config.type!r}"
                )
            settings = self._new_settings(policy_id, message.lora_config or LoraSettings(rank=DEFAULT_RANK))
        self._make_room()
        policy = self.base.add(settings)
        if isinstance(message, LoadWeights):
            self._load(policy, message, client)
        policy.save(self.checkpoints.state_file(policy_id, 0))
        now = stamp_s()
        about = {"base_model": self.name, **asdict(settings)}
        record = PolicyRecord(
            policy_id, str(message.session_id), about, 0, now, now, message.user_metadata, None, client
        )
        answer = {"type": "load_weights" if loaded else "create_model", "model_id": policy_id}
        with self.ledger.together():
            self.ledger.add_policy(record)
            self.ledger.answer_json(request, answer | ({"path": body["path"]} if loaded else {}))
        self.active[policy_id] = policy

    def _unload(self, request: Request) -> None:
        """Delete a policy's state; its checkpoints and what samples from it stay."""
        policy = request.owner.removesuffix(UNLOADING)
        self._forget(policy)
        why = _failure(f"model_id: {policy} {REMOVED}", "user")
        with self.ledger.together():
            self.ledger.remove_policy(policy, why)
            self.ledger.answer_json(request, {"type": "unload_model", "model_id": policy})
        self.queue.drop(policy)
        self.checkpoints.remove_state(policy)

    def _check_name(self, name: str) -> None:
        if name != self.name:
            raise InputError(f"base_model: this server has {self.name!r}, got {name!r}")

    def _new_settings(self, policy: str, lora: LoraSettings) -> AdapterSettings:
        if lora.rank > self.most_rank:
            raise InputError(
                f"lora_config.rank: must be at most {self.most_rank} (--lora-rank), got {lora.rank}"
            )
        # One that follows from the name: a policy that is made again after a kill is the same.
        seed = lora.seed if lora.seed is not None else xxhash.xxh64_intdigest(policy.encode()) >> 1
        settings = AdapterSettings(lora.rank, seed, lora.train_attn, lora.train_mlp)
        self.base.layers(settings)
        return settings

    def _activated(self, name: str) -> TrainedAdapter:
        """Return a policy in memory. Raises `InputError` for an unknown one.

        One that is not there is read from its file, and the gradients after it are computed again.
        """
        if name not in self.active:
            record = self.ledger.policy(name)
            if record is None:
                raise InputError(f"model_id: there is no policy {name!r}")
            if record.removed is not None:
                raise InputError(f"model_id: {name} {REMOVED}")
            self._make_room()
            settings = AdapterSettings(**{k: v for k, v in record.settings.items() if k != "base_model"})
            policy = self.base.add(settings)
            policy.load(self.checkpoints.state_file(name, record.applied), optimizer=True)
            for request in self.ledger.after(name, record.applied):
                if request.kind == FORWARD_BACKWARD and request.form == PROTO and request.body:
                    policy.forward_backward(read_request(request.body))
            self.active[name] = policy
        self.active.move_to_end(name)
        return self.active[name]

    def _make_room(self) -> None:
        """Leave the policies that were used longest ago to their files."""
        while len(self.active) >= self.most_active:
            self.active.popitem(last=False)[1].remove()

    def _forward_backward(self, policy: TrainedAdapter, request: Request) -> None:
        asked = read_request(request.body)
        logprobs, metrics = policy.forward_backward(asked)
        tokens = sum(len(datum.tokens) for datum in asked.data)
        self.tokens += tokens
        answer = forward_backward_output(logprobs, metrics)
        with self.ledger.together():
            self.ledger.use(self._record(request).client, trained=tokens)
            self.ledger.answer(request, answer, PROTO, drop_body=asked.forward_only)

    def _step(self, policy: TrainedAdapter, request: Request) -> None:
        message = OptimStep.model_validate_json(request.body)
        if message.optimizer_params is not None:
            raise InputError("optimizer_params: this server has AdamW alone; give adam_params")
        metrics = policy.step(message.adam_params or AdamParams())
        self.steps += 1
        self._keep(policy, request, {"metrics": metrics}, steps=1)

    def _record(self, request: Request) -> PolicyRecord:
        """Return the policy of a request."""
        record = self.ledger.policy(request.owner)
        assert record is not None
        return record

    def _keep(self, policy: TrainedAdapter, request: Request, answer: dict[str, Any], steps: int = 0) -> None:
        """Write down a policy's new state and the answer to the request that made it."""
        record = self._record(request)
        policy.save(self.checkpoints.state_file(request.owner, request.number))
        with self.ledger.together():
            self.ledger.applied(request.owner, request.number)
            self.ledger.use(record.client, steps=steps)
            self.ledger.answer_json(request, answer)
        self.checkpoints.state_file(request.owner, record.applied).unlink(missing_ok=True)

    def _load(self, policy: TrainedAdapter, message: LoadWeights, client: str) -> None:
        checkpoint = self.checkpoints.find(message.path, client, WEIGHTS)
        policy.load(self.checkpoints.weights_file(checkpoint.policy, checkpoint.name), message.optimizer)


def _failure(reason: str, category: str) -> bytes:
    return json.dumps({"error": reason, "category": category}).encode()
