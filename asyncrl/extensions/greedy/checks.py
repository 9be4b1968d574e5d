"""What an objective with a greedy baseline asks of every group."""

from __future__ import annotations

from asyncrl.errors import InputError
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.types import GREEDY_REWARD


def check_group(batch: StepBatch) -> None:
    """Raise `InputError` for an episode that does not say what a greedy one of its task earned."""
    for t in batch.trajectories:
        if GREEDY_REWARD not in t.info:
            raise InputError(f"episode {t.episode_index} lacks the reward of a greedy one")
