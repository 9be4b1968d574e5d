"""Writes checkpoints: their files first, then their records together with the answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from typing import Any

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker.checkpoints import (
    EXTERNAL_WEIGHTS,
    SAMPLER_WEIGHTS,
    SNAPSHOT,
    WEIGHTS,
    Checkpoints,
    expiry,
)
from asyncrl.extensions.tinker.messages import SaveExternal, SaveForSampler, SaveWeights
from asyncrl.extensions.tinker.policies import TrainedAdapter
from asyncrl.extensions.tinker.tables import Checkpoint, Request


def save_weights(checkpoints: Checkpoints, policy: TrainedAdapter, request: Request) -> None:
    """Write what can be trained on from. Raises `InputError`."""
    message = SaveWeights.model_validate_json(request.body)
    checkpoint = _checkpoint(request, WEIGHTS, message)
    if not message.overwrite:
        _need_new(checkpoints, checkpoint, "; overwrite = True replaces it")
    file = checkpoints.weights_file(request.owner, checkpoint.name)
    policy.save(file)
    settings = checkpoints.settings_file(request.owner, checkpoint.name)
    settings.write_text(json.dumps(asdict(policy.settings)))
    ledger = checkpoints.ledger
    with ledger.together():
        ledger.add_checkpoint(replace(checkpoint, bytes=file.stat().st_size))
        ledger.answer_json(request, {"type": "save_weights", "path": checkpoint.path})


def save_for_sampler(checkpoints: Checkpoints, policy: TrainedAdapter, request: Request) -> None:
    """Write an adapter to sample from, for a name or for one sampler. Raises `InputError`."""
    message = SaveForSampler.model_validate_json(request.body)
    checkpoint = _checkpoint(request, SAMPLER_WEIGHTS, message)
    if message.path is not None:
        _need_new(checkpoints, checkpoint)
    adapter = checkpoints.adapter(checkpoint)
    folder = checkpoints.adapters / adapter
    # Of a server that was killed while it wrote; no sampler has it.
    shutil.rmtree(folder, ignore_errors=True)
    size = policy.write(folder, policy.base.path)
    answer: dict[str, Any] = {"type": "save_weights_for_sampler"}
    ledger = checkpoints.ledger
    record = ledger.policy(request.owner)
    assert record is not None
    with ledger.together():
        if message.path is not None:
            ledger.add_checkpoint(replace(checkpoint, bytes=size))
            answer["path"] = checkpoint.path
        else:
            # No name of a client's own: those are numbers.
            sampler = f"{record.session}:sample:{record.id.rpartition(':')[2]}-{request.number}"
            ledger.add_sampler(sampler, record.session, adapter, "")
            answer["sampling_session_id"] = sampler
        ledger.answer_json(request, answer)


def save_external(
    checkpoints: Checkpoints, policy: TrainedAdapter, request: Request, base_model: str
) -> None:
    """Write an adapter to be downloaded. base_model: as clients name it. Raises `InputError`."""
    message = SaveExternal.model_validate_json(request.body)
    if message.age_encryption_recipients:
        raise InputError("age_encryption_recipients: this server encrypts nothing; leave it out")
    checkpoint = _checkpoint(request, EXTERNAL_WEIGHTS, message)
    _need_new(checkpoints, checkpoint)
    folder = checkpoints.external_folder(request.owner, checkpoint.name)
    shutil.rmtree(folder, ignore_errors=True)
    size = policy.write(folder, base_model)
    ledger = checkpoints.ledger
    with ledger.together():
        ledger.add_checkpoint(replace(checkpoint, bytes=size))
        answer = {"type": "save_weights_external", "path": checkpoint.path, "size_bytes": size}
        ledger.answer_json(request, answer)


def _need_new(checkpoints: Checkpoints, checkpoint: Checkpoint, otherwise: str = "") -> None:
    if checkpoints.ledger.checkpoint(checkpoint.policy, checkpoint.kind, checkpoint.name) is not None:
        raise InputError(f"path: there is a checkpoint {checkpoint.path}{otherwise}")


def _checkpoint(request: Request, kind: str, message: SaveWeights) -> Checkpoint:
    own = f"{SNAPSHOT if kind == SAMPLER_WEIGHTS else 'at-'}{request.number}"
    name = message.path if message.path is not None else own
    expires = expiry(message.ttl_seconds)
    return Checkpoint(request.owner, kind, name, stamp_s(), 0, expires, message.user_metadata)
