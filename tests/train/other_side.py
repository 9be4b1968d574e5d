"""Trajectories of an exploiter with the states of the other side, for the trainer's tests and for two ranks
(`tests.ranks`)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncrl.extensions.critic.part import CRITIC, load_critic
from asyncrl.extensions.league.minimax import MainCritic, MinimaxReward
from asyncrl.extensions.league.token_extra import NextStates
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.step.step_batch import StepBatch, build_step_batch, pad_rows
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.whole_batch import whole_batch
from asyncrl.types import Group, Trajectory
from tests.train.factories import group, trajectory
from tests.train.one_step import Learner, make_engine, shared
from tests.train.one_step_lora import LORA

SETTINGS = StepSettings(1.0, 60, 1, horizon=64.0)
GAMMA = 0.9


def main_learner(model: str, trunk: str) -> Learner:
    """Return a main policy with an adapter, whose critic has learned something."""
    learner = Learner(model, {"preset": "ppo", "value": {"trunk": trunk, "learning_rate": 1e-2}}, lora=LORA)
    learn(learner)
    return learner


def learn(learner: Learner) -> None:
    groups = [group("t0", [1.0, 0.0, 1.0]), group("t1", [1.0, -1.0], turns=1)]
    for _ in range(2):
        learner.step(build_step_batch(groups, 0, 0))


def save(learner: Learner, folder: Path, model: str, version: int) -> None:
    """Write a checkpoint as the main policy's trainer does."""
    critic = learner.auxiliary.parts["critic"]
    assert critic is not None
    others = {CRITIC: critic.engine} if critic.engine is not None else {}
    saver = Checkpointer(folder, learner.engine, model, others=others)
    saver.save(version, {})
    saver.wait()


def against(t: Trajectory, other: Trajectory) -> Trajectory:
    """Return a trajectory after whose turns, but for the last, the other side takes its turns."""
    starts = [turn.start for turn in other.turns][: len(t.turns) - 1]
    after = (*((0, start) for start in starts), *[None] * (len(t.turns) - len(starts)))
    return dataclasses.replace(t, extras={"next_states": NextStates((other.token_ids[: starts[-1]],), after)})


def others_of(groups: Sequence[Group]) -> list[Trajectory]:
    """Return the other side's trajectory of each episode."""
    return [
        trajectory(f"other {one.id}", t.episode_index, turns=len(t.turns))
        for one in groups
        for t in one.trajectories
    ]


def with_states(groups: Sequence[Group]) -> list[Group]:
    others = iter(others_of(groups))
    return [
        dataclasses.replace(one, trajectories=tuple(against(t, next(others)) for t in one.trajectories))
        for one in groups
    ]


def values_of(learner: Learner, others: Sequence[Trajectory]) -> list[list[float]]:
    """Return what the main policy's own trainer computes for the first token of each turn of its trajectories."""
    batch = StepBatch(tuple(others), torch.zeros(len(others), dtype=torch.long), 0)
    rows = pad_rows(batch, range(len(others)))
    critic = learner.auxiliary.parts["critic"]
    assert critic is not None
    with torch.no_grad():
        found = critic.outputs(learner.engine, rows.token_ids, rows.mask)["values"]
    return [[float(found[row, turn.start]) for turn in t.turns] for row, t in enumerate(others)]


def rewards_by_hand(
    groups: Sequence[Group], values: Sequence[Sequence[float]], gamma: float
) -> list[list[float]]:
    """Return the rewards of the turns of the groups that `with_states` has made."""
    rows = [t for one in groups for t in one.trajectories]
    return [
        [*(-gamma * value for value in found[: len(t.turns) - 1]), t.turns[-1].reward]
        for t, found in zip(rows, values, strict=True)
    ]


def paid_by_hand(groups: Sequence[Group], rewards: Sequence[Sequence[float]]) -> list[Group]:
    """Return the groups as if the environment had given these rewards."""
    given = iter(rewards)

    def paid(t: Trajectory) -> Trajectory:
        found = next(given)
        turns = [dataclasses.replace(turn, reward=r) for turn, r in zip(t.turns, found, strict=True)]
        return dataclasses.replace(t, turns=tuple(turns), reward=sum(found), extras={})

    return [dataclasses.replace(g, trajectories=tuple(map(paid, g.trajectories))) for g in groups]


def groups_of_two_sizes() -> list[Group]:
    return with_states([group("a", [0.0, 1.0, -1.0]), group("b", [1.0, 0.0], turns=3)])


def main(model: str, checkpoints: str, out: str) -> None:
    """On each rank leave the rewards of the rows that it trains on, on the first those of all turns."""
    engine = make_engine(model, 1)
    critic = MainCritic(load_critic(model, "float32"), Path(checkpoints))
    critic.refresh(engine)
    batch = shared(engine, build_step_batch(groups_of_two_sizes(), 0, 0))

    def serve(one: StepBatch) -> None:
        def forward(micro: Any) -> dict[str, torch.Tensor]:
            return engine.outputs(micro.token_ids, micro.mask, 1.0)

        whole_batch(engine, one, SETTINGS, forward, ("logp",))

    # As the check of log-probabilities does, before the step.
    serve(batch)
    rewarded = MinimaxReward(critic, GAMMA).apply(engine, batch, SETTINGS)
    serve(rewarded.batch)
    held = rewarded.batch.held if engine.rank else dict(enumerate(rewarded.batch.trajectories))
    kept = {
        "turn_rewards": rewarded.turn_rewards,
        "metrics": rewarded.metrics,
        "rows": {row: t.reward for row, t in held.items()},
        "step_rewards": np.asarray(rewarded.batch.rewards).tolist(),
    }
    (Path(out) / f"minimax-{engine.rank}.json").write_text(json.dumps(kept))
