"""Measures what steps of each of several runs allocate on each of two ranks. Started by `two_ranks`."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist

from asyncrl.config import load_config
from asyncrl.jsonfile import write_json
from asyncrl.train.engine import optimizers
from scripts.testing.step_memory import measured_step


def main(model: str, folder: str, vocab_size: str, overrides: str) -> None:
    """Write the peaks of the recipe with each list of `overrides` to `folder`/RANK.json, by its words."""
    found = {}
    with patch.object(optimizers, "fused", lambda: True):
        for words in json.loads(overrides):
            found[" ".join(words)] = measured_step(
                load_config("gridworld_grpo", words), model, int(vocab_size)
            )
    write_json(Path(folder) / f"{dist.get_rank()}.json", found)
