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

from asyncrl.algo.advantage.igpo import answer_probability
from asyncrl.errors import ConfigError
from asyncrl.images import images_in
from asyncrl.train.ragged import Ragged
from asyncrl.train.step_batch import StepBatch, row_to_score
from asyncrl.types import ANSWER_IDS, IMAGES, Trajectory, Turn


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


def _probe(t: Trajectory, turn: Turn, answer: list[int]) -> Trajectory:
    ids = np.concatenate([t.token_ids[: turn.start], np.asarray(answer, np.int32)])
    mask = np.arange(len(ids)) >= turn.start
    return row_to_score(
        ids, mask, t.task_id, t.episode_index, images=images_in(t.extras.get(IMAGES, ()), 0, turn.start)
    )


def probabilities(batch: StepBatch, places: list[tuple[int, int]], logp: Ragged) -> Tensor:
    """Return [B,K] length-normalised probabilities of the answer before each turn, NaN where a row has no such turn.

    logp: log-probabilities of the N answers' tokens.
    """
    width = max((len(t.turns) for t in batch.trajectories), default=0)
    found = torch.full((len(batch.trajectories), width), torch.nan)
    for probe, (row, number) in enumerate(places):
        found[row, number] = answer_probability(logp.row(probe))
    return found
