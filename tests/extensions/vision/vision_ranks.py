"""A step on rows with images and rows without, on two ranks (`tests.ranks`) or one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.generation import Generated
from asyncrl.train.step.step_batch import StepBatch, build_step_batch
from asyncrl.types import Group, Status, Task
from tests.train.one_step import RecordingEngine, make_engine, step_once
from tests.vision import picture, shown

SEEN = [
    [[picture(0, 32, 48), picture(1, 64, 64)], [picture(2, 16, 16)], []],
    [[], [picture(0, 32, 48)], []],
]
"""The images of each row, by group."""
STAGES = range(4)


def batch(model: str) -> StepBatch:
    renderer = load_renderer(model)
    groups = []
    for number, rows in enumerate(SEEN):
        task, found = Task(f"t{number}", "none"), []
        for index, images in enumerate(rows):
            builder = TrajectoryBuilder(task, index)
            messages = [shown("look ", *images, "where")]
            ids = renderer.opening(messages)
            builder.add_context(ids, "", renderer.extras(ids, messages))
            sampled = np.array([20 + number, 30 + index, 40], np.int32)
            builder.add_turn(
                Generated(sampled, np.full(3, -5.5, np.float32), np.zeros(3, np.int32), "stop", 0)
            )
            found.append(replace(builder.finish(Status.FINISHED), reward=float(index == number)))
        groups.append(Group(f"g{number}", task, 0, tuple(found), "w"))
    return build_step_batch(groups, 0, 0)


def step(model: str, stage: int) -> dict[str, torch.Tensor]:
    """Return the norm of a step's gradient, and without ZeRO the gradient. Some micro-batches hold no image."""
    engine = make_engine(model, stage)
    report = step_once(engine, 40, batch(model))
    found = {"norm": torch.tensor(report.metrics["grad_norm"])}
    return found | ({"gradient": engine.gradients[0]} if isinstance(engine, RecordingEngine) else {})


def main(model: str, folder: str) -> None:
    for stage in STAGES:
        found = step(model, stage)
        if torch.distributed.get_rank() == 0:
            save_file(found, Path(folder) / f"step-{stage}.safetensors")
