"""The callbacks that a configuration asks for, but for those that need other processes."""

from __future__ import annotations

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.train.callbacks import TrainerCallback
from asyncrl.train.replay_pool import Replay, ReplayPool
from asyncrl.train.sft_phase import SftPhase, SftPhases, SftPhaseSettings
from asyncrl.train.success_pool import Completion, SuccessPool


def configured(config: Config, objective: Objective, first: bool) -> list[TrainerCallback]:
    """Return them in the order in which they are called. first: whether this is the first rank."""
    train = config.train
    found: list[TrainerCallback] = []
    if first and train.complete_groups:
        found.append(Completion(SuccessPool(train.replay_max_age)))
    if first and train.replay_groups:
        found.append(Replay(ReplayPool(train.replay_groups, train.replay_max_age, config.run.seed)))
    phase = SftPhaseSettings(**objective.settings["sft_phase"])
    if phase.every:
        found.append(SftPhases(SftPhase(phase)))
    return found
