"""What a step's metrics tell of groups that were explored: how far their candidates foretold them. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.types import EXPLORED, Trajectory


def explored_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the metrics of a step's fresh trajectories; nothing where no group was explored (`rollout.exploring`).

    They are means over episodes, each counted by its main agent's trajectory. Episodes without a candidate say nothing
    of agreement. The correlation of an episode's reward with its candidate's is left out where either is the same in
    all of them.
    """
    found = [
        (t, t.info[EXPLORED]) for t in trajectories if EXPLORED in t.info and t.episode_index == t.rollout
    ]
    if not found:
        return {}
    told = {
        "explore/candidates": float(np.mean([known["candidates"] for _, known in found])),
        "explore/contrast": float(np.mean([known["contrast"] for _, known in found])),
    }
    pairs = [(t.reward, known) for t, known in found if known["reward"] is not None]
    if not pairs:
        return told
    rewards = np.array([(reward, known["reward"]) for reward, known in pairs])
    told["explore/same_tokens"] = float(np.mean([known["same_tokens"] for _, known in pairs]))
    told["explore/same_reward"] = float(np.mean(rewards[:, 0] == rewards[:, 1]))
    if (rewards.std(0) > 0).all():
        told["explore/reward_correlation"] = float(np.corrcoef(rewards.T)[0, 1])
    return told
