"""Repeats the step of a file that `asyncrl.train.features.poison` has left, on one rank."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, unpack
from asyncrl.errors import InputError
from asyncrl.extensions.collapse_guard.rule import saved_scale
from asyncrl.train.checkpoint.extra_state import join
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import STEPS, WholeTensors, load_state
from asyncrl.train.features.poison import ENGINES
from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
from asyncrl.train.step.controls import make_controls, scheduled_rate
from asyncrl.train.step.step import StepReport, train_step
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_settings import StepSettings


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
    batch = build_step_batch(groups, about["version"], about["max_age"], added_max_age=about["max_age"])
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
