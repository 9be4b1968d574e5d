"""What the server has, as the SDK and people read it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from asyncrl.extensions.tinker.checkpoints import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, WEIGHTS
from asyncrl.extensions.tinker.listings import Listings
from asyncrl.extensions.tinker.server import Server
from asyncrl.extensions.tinker.tables import Checkpoint, PolicyRecord

TYPES = {WEIGHTS: "training", SAMPLER_WEIGHTS: "sampler", EXTERNAL_WEIGHTS: "external"}
"""What clients call the kinds of checkpoints."""


def info(server: Server, record: PolicyRecord) -> dict[str, Any]:
    """Return what the SDK asks of a policy."""
    model = {"arch": server.training.base.architecture, "model_name": server.name}
    if server.tokenizer:
        model["tokenizer_id"] = server.tokenizer
    return {
        "type": "get_info",
        "model_data": model,
        "model_id": record.id,
        "model_name": server.name,
        "is_lora": True,
        "lora_rank": record.settings["rank"],
    }


def weights_info(record: PolicyRecord) -> dict[str, Any]:
    """Return what the SDK asks of a checkpoint: how the adapter of its policy was made."""
    return {
        "base_model": record.settings["base_model"],
        "is_lora": True,
        "lora_rank": record.settings["rank"],
        "train_unembed": False,
        "train_mlp": record.settings["mlp"],
        "train_attn": record.settings["attention"],
    }


def training_run(listings: Listings, record: PolicyRecord) -> dict[str, Any]:
    """Return a policy as the SDK's `TrainingRun`."""
    newest = {kind: listings.newest(record.id, kind) for kind in (WEIGHTS, SAMPLER_WEIGHTS)}
    last = {kind: None if one is None else shown(one) for kind, one in newest.items()}
    return {
        "training_run_id": record.id,
        "base_model": record.settings["base_model"],
        "model_owner": record.client or "local",
        "is_lora": True,
        "lora_rank": record.settings["rank"],
        "last_request_time": moment(record.used),
        "last_checkpoint": last[WEIGHTS],
        "last_sampler_checkpoint": last[SAMPLER_WEIGHTS],
        "user_metadata": record.about,
    }


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


def moment(seconds: float) -> str:
    """Return seconds since 1970 as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def state(server: Server) -> dict[str, Any]:
    """Return what the server does, for people and programs that watch it."""
    by_client = server.listings.by_client()
    return {
        "model": server.name,
        "sessions": server.ledger.count("SELECT COUNT(*) FROM sessions"),
        "policies": server.ledger.count_trained(),
        "policies_in_memory": len(server.training.active),
        "training_requests_waiting": len(server.training.queue),
        "sampling_requests_waiting": server.sampling.num_waiting,
        "steps": server.training.steps,
        "tokens_trained": server.training.tokens,
        "tokens_sampled": server.sampling.tokens,
        "engine_serves": server.sampling.engine is not None,
        "clients": by_client,
    }
