"""The Minimax Exploiter's reward in its trainer: values of the other side's states, by the main policy's own critic.

    checkpoint of the main policy --critic's weights--> first rank --> all ranks
    each step: states after the exploiter's turns --> values --> rewards of the turns --> advantages

The critic is read where the exploiter saves a checkpoint, which keeps it: one that is resumed there goes on with the
same values, whatever the main policy has saved meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from asyncrl.algo.objective import Objective, build_objective
from asyncrl.config import Config
from asyncrl.extensions.critic.part import CRITIC, CriticModel, load_critic
from asyncrl.extensions.critic.value_head import HEAD, new_head
from asyncrl.extensions.league.rules.minimax import minimax_rewards
from asyncrl.extensions.league.token_extra import NEXT_STATES
from asyncrl.run.checkpoints import VALUES, complete_checkpoints, state_folder
from asyncrl.train.checkpoint.checkpoint_files import KeptState, StateFiles
from asyncrl.train.checkpoint.checkpointer import newest_usable
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import WEIGHT
from asyncrl.train.loop.callbacks import TrainerCallback
from asyncrl.train.models.loading import load_policy
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.parts.needed_models import forward_changes, offloaded
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import Rows, StepBatch, row_to_score
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.whole_batch import whole_batch
from asyncrl.types import Trajectory

log = logging.getLogger("asyncrl.train")

UNREAD = -1
"""Version of a critic of which no checkpoint has been read. It values everything at 0, as that of version 0 does."""

Place = tuple[int, int, int]
"""A row, one of the other side's conversations in it, and how many of its tokens are a state."""


class MainCritic:
    """The critic of the main policy, with a trunk of its own or on the policy's, which is read and never trained.

    checkpoints: the main policy's; only the first rank reads them. offload: keep it in host memory between its passes.
    """

    def __init__(self, module: CriticModel | PolicyModel, checkpoints: Path, offload: bool = False) -> None:
        trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self.parameters = trained
        """What a checkpoint has of it; the rest is the base model's."""
        self.module = module.eval().requires_grad_(False)
        self.checkpoints = checkpoints
        self.offload = offload
        self.version = UNREAD
        """The version of the main policy, whose critic it is."""

    def refresh(self, engine: TrainEngine) -> None:
        """Read the newest complete checkpoint, if it is another one. A collective.

        Raises `InputError` where it is of another model.
        """
        weights: dict[str, Tensor] = {}

        def read() -> int:
            saved = complete_checkpoints(self.checkpoints)
            # One that is known is not read through again.
            if not saved or saved[0][0] == self.version:
                return self.version
            found = newest_usable(self.checkpoints, saved[0][0])
            if found is None:
                return self.version
            try:
                weights.update(self._stored(found[1]))
            except OSError as error:
                log.warning("the critic stays that of version %d: %s", self.version, error)
                return self.version
            return found[0]

        version = engine.on_first(read)
        if version == self.version:
            return
        for name in self.parameters:
            body = engine.broadcast_bytes(save({name: weights[name]}) if weights else None)
            self._put(name, load(body)[name])
        self.version = version

    def _stored(self, checkpoint: Path) -> dict[str, Tensor]:
        """Return the critic's float32 weights in a checkpoint. Raises `InputError` and `OSError`."""
        folder = state_folder(checkpoint)
        shapes = json.loads((folder / VALUES).read_text()).get("shapes", {})
        prefix = f"{CRITIC}:" if isinstance(self.module, CriticModel) else ""
        state = KeptState(StateFiles(folder), shapes, prefix)
        return {
            name: state.read(f"{WEIGHT}/{name}", 0, one.numel()).view(one.shape)
            for name, one in self.parameters.items()
        }

    @torch.no_grad()
    def _put(self, name: str, weight: Tensor) -> None:
        self.parameters[name].copy_(weight)

    def values(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> dict[Place, float]:
        """Return on the first rank the values of the states in a batch, by their places. A collective."""
        rows, names = states_of(batch) if engine.rank == 0 else ([], [])
        if self.version == UNREAD or not engine.on_first(lambda: bool(rows)):
            return {place: 0.0 for one in names for place in one}
        group = torch.zeros(len(rows), dtype=torch.long)
        states = share_batch(engine, StepBatch(tuple(rows), group, batch.step) if engine.rank == 0 else None)
        self.module.to(engine.device)

        def forward(micro: Rows) -> dict[str, Tensor]:
            ids, mask = micro.token_ids.to(engine.device), micro.mask.to(engine.device)
            if isinstance(self.module, CriticModel):
                return self.module(ids, mask)
            return self.module(ids, mask, 1.0, ("values",))

        found = whole_batch(engine, states, settings, forward, ("values",))["values"]
        if self.offload:
            self.module.to("cpu")
        return {
            place: value
            for row, places in enumerate(names)
            for place, value in zip(places, found.row(row).tolist(), strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the weights only once they differ from those it starts with."""
        weights = self.parameters if self.version != UNREAD else {}
        return {"version": self.version, "weights": dict(weights)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = int(state["version"])
        for name, weight in state["weights"].items():
            self._put(name, weight)


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A batch with the rewards that an exploiter is trained on. The first rank has all of them."""

    batch: StepBatch
    turn_rewards: list[list[float]]
    """[B][K]"""
    metrics: dict[str, float]


class MinimaxReward:
    """Rewards an exploiter's turns by the main policy's critic. gamma: the exploiter's discount."""

    def __init__(self, critic: MainCritic, gamma: float) -> None:
        self.critic = critic
        self.gamma = gamma

    def apply(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Rewarded:
        """Return the batch with other rewards of its turns and, their sums, of its rows. A collective."""
        values = self.critic.values(engine, batch, settings)
        metrics = engine.on_first(
            lambda: {
                "exploiter/critic_version": float(self.critic.version),
                "exploiter/main_value": sum(values.values()) / max(1, len(values)),
            }
        )
        if engine.rank != 0:
            # Rows that it has been served have the game's rewards.
            return Rewarded(dataclasses.replace(batch, held={}), [], metrics)
        rows = [self._rewarded(row, t, values) for row, t in enumerate(batch.trajectories)]
        rewarded = dataclasses.replace(batch, trajectories=tuple(rows), sent={})
        return Rewarded(rewarded, [[turn.reward for turn in t.turns] for t in rows], metrics)

    def _rewarded(self, row: int, t: Trajectory, values: dict[Place, float]) -> Trajectory:
        after = t.extras[NEXT_STATES].after if NEXT_STATES in t.extras else (None,) * len(t.turns)
        found = minimax_rewards(
            [turn.reward for turn in t.turns],
            [None if place is None else values[row, *place] for place in after],
            self.gamma,
        )
        turns = tuple(
            dataclasses.replace(turn, reward=reward) for turn, reward in zip(t.turns, found, strict=True)
        )
        return dataclasses.replace(t, turns=turns, reward=sum(found))

    def state_dict(self) -> dict[str, Any]:
        return self.critic.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state)


class Minimax(TrainerCallback):
    """Trains an exploiter on these rewards, on all ranks."""

    name = "minimax"
    survives_going_back = True  # The policy that an exploiter is trained against has not gone back.

    def __init__(self, reward: MinimaxReward) -> None:
        self.reward = reward
        self._rewarded: Rewarded | None = None

    def batch(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> StepBatch:
        self._rewarded = self.reward.apply(engine, batch, settings)
        return self._rewarded.batch

    def annotate(self, report: StepReport) -> None:
        assert self._rewarded is not None
        report.metrics |= self._rewarded.metrics
        report.turn_rewards = self._rewarded.turn_rewards
        self._rewarded = None

    def before_checkpoint(self, engine: TrainEngine, on_disk: bool) -> None:
        if on_disk:
            # Nowhere else: what is trained again after a crash is valued by the critic of the checkpoint.
            self.reward.critic.refresh(engine)

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


def states_of(batch: StepBatch) -> tuple[list[Trajectory], list[list[Place]]]:
    """Return a row for each conversation of the other side in a batch, and the places of its states in their order.

    A critic values the state in which a token is sampled, so one token after each state counts as sampled.
    """
    rows: list[Trajectory] = []
    names: list[list[Place]] = []
    for row, t in enumerate(batch.trajectories):
        if NEXT_STATES not in t.extras:
            continue
        for number, ids in enumerate(t.extras[NEXT_STATES].token_ids):
            sizes = sorted(
                {place[1] for place in t.extras[NEXT_STATES].after if place and place[0] == number}
            )
            if sizes:
                rows.append(_valued(t, ids[: sizes[-1]], sizes))
                names.append([(row, number, size) for size in sizes])
    return rows, names


def _valued(t: Trajectory, ids: np.ndarray, sizes: list[int]) -> Trajectory:
    """Return a row whose critic values are those of the states that are the first `sizes` tokens of `ids` [M]."""
    # What is sampled in the last state does not matter: the value is read before it.
    ids = np.concatenate([ids, ids[-1:]])
    mask = np.isin(np.arange(len(ids)), sizes)
    return row_to_score(ids, mask, t.task_id, t.episode_index)


def load_minimax(
    config: Config, objective: Objective, main: Config, checkpoints: Path, model: str
) -> MinimaxReward:
    """Load the critic of the policy that an exploiter is trained against, as `main` configures it. Call on every rank.

    config, objective: of the exploiter. checkpoints: the main policy's, on the first rank. model: of both.
    """
    judged = build_objective(main.algo)
    dtype = main.model.dtype
    if judged.settings["value"]["trunk"] == "shared":
        # Its states were sampled by another version: its own routers choose.
        own = forward_changes(main, of_records=False)
        policy = load_policy(model, dtype, heads={HEAD: new_head}, changes=own)
        critic = MainCritic(policy, checkpoints, offloaded(config))
    else:
        critic = MainCritic(load_critic(model, dtype), checkpoints, offloaded(config))
    return MinimaxReward(critic, objective.discount)
