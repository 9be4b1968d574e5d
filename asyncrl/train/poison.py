"""Groups that make the loss or gradient NaN or infinite: saved to a file with all that is needed to reproduce it.

    poison/step-NNNNNN.safetensors      weights before the step, the groups, what the objective read, the recipe

`asyncrl replay FILE` repeats the step on one rank.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.algo.objective import build_objective
from asyncrl.config import Config, parse_config
from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.errors import InputError
from asyncrl.train.callback_context import CallbackContext
from asyncrl.train.callbacks import TrainerCallback
from asyncrl.train.collapse_guard import saved_scale
from asyncrl.train.controls import make_controls, scheduled_rate
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.full_state import STEPS, WEIGHT, WholeTensors, gather_state, load_state
from asyncrl.train.models import load_auxiliary_models, load_trained
from asyncrl.train.nested_state import join, split
from asyncrl.train.step import StepReport, train_step
from asyncrl.train.step_batch import StepBatch, build_step_batch
from asyncrl.train.step_settings import StepSettings

log = logging.getLogger("asyncrl.train")

MAX_FILES = 8
"""Files a run keeps; each holds a whole set of weights."""
ENGINES = "engines/"


class PoisonFolder(TrainerCallback):
    """Saves the groups that poisoned a step. Call on every rank; rank 0 writes."""

    def __init__(self, folder: Path, config: Config, model: str) -> None:
        self.folder = folder
        self.config = config
        self.model = model

    def poisoned(
        self,
        batch: StepBatch,
        wrong: Mapping[str, str],
        engines: Mapping[str, TrainEngine],
        state: Mapping[str, Any],
    ) -> Path | None:
        """Keep the groups of a batch that are wrong (id to what is wrong with it); return the file on rank 0.

        engines: those that the step trains, by name, as they are before it. A disk that refuses is logged.
        """
        version = batch.step
        tensors: dict[str, Tensor] = {}
        first = False
        for name, engine in engines.items():
            first = engine.rank == 0
            kept = {key: t for key, t in gather_state(engine).items() if key.startswith(f"{WEIGHT}/")}
            tensors |= {f"{ENGINES}{name}/{key}": tensor for key, tensor in kept.items()}
        if not first:
            return None
        bodies = pack([encode_group(group) for group in batch.groups if group.id in wrong])
        tensors["groups"] = torch.frombuffer(bytearray(bodies), dtype=torch.uint8)
        about = {
            "version": version,
            "model": self.model,
            "config": self.config.model_dump(mode="json"),
            "wrong": dict(wrong),
            "state": split(dict(state), tensors, "state"),
        }
        path = self.folder / f"step-{version:06d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if len(list(self.folder.glob("step-*"))) >= MAX_FILES and not path.exists():
                log.error("poisoned groups of step %d are not kept: %s is full", version, self.folder)
                return None
            save_file(tensors, str(path), metadata={"about": json.dumps(about)})
        except OSError as error:
            log.error("poisoned groups of step %d are not kept: %s", version, error)
            return None
        return path


def poison_folder(context: CallbackContext) -> PoisonFolder:
    """Return the callback of a run."""
    given = context.arguments
    return PoisonFolder(given.folder / "poison", context.config, given.model)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found: the step's report, the group ids by their place in it, and what was recorded."""

    report: StepReport
    group_ids: list[str]
    recorded: dict[str, str]


def replay(path: Path) -> Replayed:
    """Repeat the step of a poison file. Raises `InputError` for a file of another kind."""
    tensors, about = _read(path)
    config = parse_config(about["config"], str(path), strict=False)
    objective = build_objective(config.algo)
    alone = {
        "zero_stage": 0,
        "offload": "none",
        "offload_folder": "",
        "sequence_parallel": 1,
        "tensor_parallel": 1,
    }
    train = config.train.model_copy(update=alone)
    config = config.model_copy(update={"train": train})
    engine = TrainEngine(load_trained(config, objective, about["model"]), train, config.model.dtype)
    auxiliary = load_auxiliary_models(config, objective, engine, about["model"])
    for name, one in {"policy": engine, **auxiliary.trained_engines}.items():
        prefix = f"{ENGINES}{name}/"
        weights = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        load_state(one, WholeTensors(weights | {STEPS: torch.tensor(0.0)}))
    state = join(about["state"], tensors)
    auxiliary.load_state_dict(state["auxiliary"])
    controls = make_controls(config, objective)
    controls.load_state_dict(state["controls"])
    groups = [decode_group(body) for body in unpack(tensors["groups"].numpy().tobytes())]
    again = config.train.replay_groups or config.train.complete_groups
    oldest = max(config.buffer.max_staleness, config.train.replay_max_age if again else 0)
    if config.swarm.url:
        oldest = max(oldest, config.swarm.max_age)
    batch = build_step_batch(groups, about["version"], oldest, added_max_age=oldest)
    settings = dataclasses.replace(StepSettings.of(config), num_minibatches=1)
    rate = scheduled_rate(config.train, about["version"]) * saved_scale(state)
    report = train_step(engine, objective, auxiliary, batch, settings, rate, controls)
    return Replayed(report, [group.id for group in batch.groups], about["wrong"])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - not a dict
    except Exception as error:
        raise InputError(
            f"{path}: is no file of poisoned groups ({type(error).__name__}: {error})"
        ) from error
