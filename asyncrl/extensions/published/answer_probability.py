"""How likely the policy finds the right answer before each turn: the source of IGPO's information gain.

The answer's tokens follow what the agent has read when a turn begins, in place of the turn:

    prompt | answer              before the first turn
    prompt turn 1 reply | answer before the second, ...

Each of these is one row of a forward pass; with shared prefixes what they have in common is computed once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.answer_probability import answer_probability
from asyncrl.errors import ConfigError
from asyncrl.images import images_in
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step_batch import StepBatch, row_to_score
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch
from asyncrl.types import ANSWER_IDS, IMAGES, Trajectory, Turn


class Answers(StepPart):
    """Finds how likely the answers are under the policy of the step."""

    name = "answers"

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`."""
        asked = probe_batch(batch) if engine.rank == 0 else None
        probes = share_batch(engine, asked[0] if asked else None)
        logp = whole_batch(
            engine, probes, settings,
            lambda rows: engine.outputs(
                rows.token_ids, rows.mask, settings.temperature, extras=rows.extras
            ),
            ("logp",),
        )["logp"]  # fmt: skip
        likely = probabilities(batch, asked[1], logp) if asked else torch.zeros(0)
        found.rows["answer_probability"] = likely


def answers(context: PartContext) -> Answers:
    """Return the part of a run."""
    return Answers()


def probe_batch(batch: StepBatch) -> tuple[StepBatch, list[tuple[int, int]]]:
    """Return a row for each turn of each trajectory, and which row and turn of `batch` it is of.

    Raises `ConfigError` for a trajectory without an answer.
    """
    rows, places = [], []
    for row, t in enumerate(batch.trajectories):
        if ANSWER_IDS not in t.info:
            raise ConfigError(
                f"algo.advantage: it reads how likely the right answer is, but task {t.task_id} came without one; the "
                "data of tasks must have it as 'answer'"
            )
        for number, turn in enumerate(t.turns):
            rows.append(_probe(t, turn, t.info[ANSWER_IDS]))
            places.append((row, number))
    group = batch.group[[row for row, _ in places]]
    return StepBatch(tuple(rows), group, batch.step), places


def check_group(batch: StepBatch) -> None:
    """Raise `ConfigError` for a group whose task came without an answer."""
    probe_batch(batch)


def _probe(t: Trajectory, turn: Turn, answer: list[int]) -> Trajectory:
    ids = np.concatenate([t.token_ids[: turn.start], np.asarray(answer, np.int32)])
    mask = np.arange(len(ids)) >= turn.start
    images = images_in(t.extras.get(IMAGES, ()), 0, turn.start)
    return row_to_score(ids, mask, t.task_id, t.episode_index, extras={IMAGES: images} if images else {})


def probabilities(batch: StepBatch, places: list[tuple[int, int]], logp: Ragged) -> Tensor:
    """Return [B,K] length-normalised probabilities of the answer before each turn, NaN where a row has no such turn.

    logp: log-probabilities of the N answers' tokens.
    """
    width = max((len(t.turns) for t in batch.trajectories), default=0)
    found = torch.full((len(batch.trajectories), width), torch.nan)
    for probe, (row, number) in enumerate(places):
        found[row, number] = answer_probability(logp.row(probe))
    return found
