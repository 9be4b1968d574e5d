"""What `engine.weight_transfer` names to bring weights to the engines, and the run's publisher with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from asyncrl.config import Config
from asyncrl.credentials import Credentials
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.import_path import load_object
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.trainer.publisher import SyncFilePublisher, described_job
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.features.sampled_check import compared_versions
from asyncrl.weights.publish import FilePublisher
from asyncrl.weights.transport import Transport

if TYPE_CHECKING:
    from asyncrl.weights.carrier import Carrier


def open_publisher(
    config: Config,
    engine: TrainEngine,
    engines: Sequence[str],
    weights_dir: Path,
    credentials: Credentials,
    folder: Path,
    source: BufferClientSync | None = None,
    served: Callable[[int], list[int]] | None = None,
) -> SyncFilePublisher:
    """Return the run's publisher, with what `engine.weight_transfer` names to bring the files to the engines.

    served: the past versions that engines keep beside one; None where they keep none.
    """
    members = None
    if served is not None:
        from asyncrl.weights.members import Members

        members = Members(weights_dir, folder / "opponents", served)
    make = partial(
        FilePublisher,
        weights_dir,
        wait_s=config.outage_timeout_s,
        finish_requests=config.train.schedule == "asynchronous",
        transport=open_transport(config, engine, credentials) if engine.rank == 0 else None,
        options={"keep_kv": config.engine.keep_kv},
        members=members,
        # No turn lasts longer than its episode may.
        turn_s=config.rollout.episode_timeout_s,
        earlier=compared_versions(config),
    )
    return SyncFilePublisher(
        engines, credentials.bearer("engine"), engine.rank, make, partial(described_job, source)
    )


def open_transport(config: Config, engine: TrainEngine, credentials: Credentials) -> Transport:
    """Return how files come to engines. Raises `ConfigError`."""
    transport = Transport()
    if (carrier := open_carrier(config, engine, credentials)) is not None:
        from asyncrl.weights.carrier import Carried

        transport = Carried(carrier)
    for row in rows("weight_forms"):
        if row.wanted(config):
            transport = row.load()(transport)
    return transport


def open_carrier(config: Config, engine: TrainEngine, credentials: Credentials) -> Carrier | None:
    """Return what brings files to engines; None where they read them in a folder that both sides see.

    Raises `ConfigError`.
    """
    name, device = config.engine.weight_transfer, torch.device(engine.device)
    if name == "shared_file":
        return None
    for row in rows("weight_carriers"):
        if row.name == name:
            carrier: Carrier = row.load()(config, device, credentials)
            return carrier
    return own_carrier(name, config, device)


def own_carrier(path: str, config: Config, device: torch.device) -> Carrier:
    """Return a carrier of the user's own, made with the run's configuration and the device of the
    trainer's first rank.

    Raises `ConfigError` where the import path names none.
    """
    carrier: Carrier = load_object("engine.weight_transfer", path)(config, device)
    missing = [name for name in ("carry", "close") if not callable(getattr(carrier, name, None))]
    if missing:
        raise ConfigError(
            f"engine.weight_transfer: {path!r} is no asyncrl.weights.carrier.Carrier: it has no {missing[0]!r}"
        )
    return carrier
