"""Random but reproducible inputs for every function of the library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.inputs import TOKEN_FIELDS, LossInputs


def random_mask(generator: torch.Generator, rows: int, width: int) -> Tensor:
    """Every row has a sampled token; the last column is always masked."""
    mask = torch.rand(rows, width, generator=generator) < 0.7
    mask[:, 0] = True
    mask[:, -1] = False
    return mask


EXTRAS = ("teacher_logp", "teacher_kl", "snapshot_logp", "values", "old_values", "returns", "clip_scale")
"""The extras of `LossInputs` that losses and diagnostics of the library read."""
OF_TOKENS = (*TOKEN_FIELDS, *EXTRAS)


def loss_fields(seed: int, rows: int = 4, width: int = 6, spread: float = 0.5) -> dict[str, Any]:
    """What `LossInputs.of` takes in float64: all fields and extras."""
    g = torch.Generator().manual_seed(seed)

    def near(x: Tensor, scale: float = spread) -> Tensor:
        return x + scale * torch.randn(rows, width, generator=g, dtype=torch.float64)

    logp = -0.2 - 2 * torch.rand(rows, width, generator=g, dtype=torch.float64)
    return {
        "logp": logp,
        "mask": random_mask(g, rows, width),
        "advantages": torch.randn(rows, 1, generator=g, dtype=torch.float64).expand(rows, width).clone(),
        "behavior_logp": near(logp).clamp(max=-0.01),
        "proximal_logp": near(logp).clamp(max=-0.01),
        "reference_logp": near(logp),
        "teacher_logp": near(logp),
        "teacher_kl": torch.rand(rows, width, generator=g, dtype=torch.float64),
        "snapshot_logp": near(logp, 0.1),
        "entropy": torch.rand(rows, width, generator=g, dtype=torch.float64),
        "values": torch.randn(rows, width, generator=g, dtype=torch.float64),
        "old_values": torch.randn(rows, width, generator=g, dtype=torch.float64),
        "returns": torch.randn(rows, width, generator=g, dtype=torch.float64),
        "clip_scale": 0.7 + 0.6 * torch.rand(rows, width, generator=g, dtype=torch.float64),
        "versions": torch.randint(0, 6, (rows, width), generator=g),
        "current_version": 6,
        "turn_ids": (torch.arange(width) * 2 // width).expand(rows, width).clone(),
        "scores": torch.randn(rows, generator=g, dtype=torch.float64),
        "group": torch.arange(rows) // 2,
    }


def loss_inputs(seed: int, rows: int = 4, width: int = 6, **changes: Any) -> Any:
    """`LossInputs` with every field; untyped, so that tests may use the optional ones."""
    return LossInputs.of({**loss_fields(seed, rows, width), **changes})


def advantage_batch(seed: int, groups: int = 3, size: int = 4, width: int = 8, **changes: Any) -> Any:
    """An `AdvantageBatch` with two turns per row and every optional field; untyped, as above."""
    g = torch.Generator().manual_seed(seed)
    rows = groups * size
    turn_ids = torch.full((rows, width), -1)
    turn_ids[:, : width // 2 - 1] = 0
    turn_ids[:, width // 2 : width - 1] = 1
    turn_rewards = torch.rand(rows, 2, generator=g, dtype=torch.float64)
    logp = -0.2 - torch.rand(rows, width, generator=g, dtype=torch.float64)
    fields: dict[str, Any] = {
        "rewards": turn_rewards.sum(1),
        "group": torch.arange(rows) // size,
        "mask": turn_ids >= 0,
        "turn_ids": turn_ids,
        "turn_rewards": turn_rewards.tolist(),
        "observation_ids": [["start", f"room-{row % 2}"] for row in range(rows)],
        "answer_probability": torch.rand(rows, 2, generator=g, dtype=torch.float64),
        "turn_matches": [[True, row % 3 > 0] for row in range(rows)],
        "components": {
            "format": torch.rand(rows, generator=g, dtype=torch.float64),
            "answer": torch.rand(rows, generator=g, dtype=torch.float64),
        },
        "agents": [("planner", "solver")[row % 2] for row in range(rows)],
        "branches": [
            (f"r{row}", f"r{row - 1}" if row % size in (1, 2) else "", int(row % size == 1))
            for row in range(rows)
        ],
        "rollouts": [f"rollout-{row // 2}" for row in range(rows)],
        "hint_turns": [2 * (row % 2) for row in range(rows)],
        "truncated": torch.arange(rows) % 3 == 0,
        "values": torch.randn(rows, width, generator=g, dtype=torch.float64),
        "bootstrap_values": torch.randn(rows, generator=g, dtype=torch.float64),
        "old_logp": logp,
        "behavior_logp": logp + 0.1 * torch.randn(rows, width, generator=g, dtype=torch.float64),
        "reference_logp": logp + 0.1 * torch.randn(rows, width, generator=g, dtype=torch.float64),
        "entropy": torch.rand(rows, width, generator=g, dtype=torch.float64),
        "sum_pi_squared": logp.exp() ** 2,
        "greedy_rewards": torch.rand(rows, generator=g, dtype=torch.float64),
        "baselines": torch.rand(rows, generator=g, dtype=torch.float64),
        "role_baselines": torch.rand(rows, generator=g, dtype=torch.float64),
        "score_norms": torch.rand(rows, generator=g, dtype=torch.float64) + 0.1,
    }
    return AdvantageBatch(**{**fields, **changes})


def batch_for(name: str, seed: int) -> Any:
    """A batch that the estimator takes: by column tokens are only compared in episodes of one turn."""
    if name != "optimal_token_baseline":
        return advantage_batch(seed)
    turn_ids = torch.full((12, 8), -1)
    turn_ids[:, :6] = 0
    return advantage_batch(seed, mask=turn_ids >= 0, turn_ids=turn_ids, turn_rewards=[[0.5]] * 12)
