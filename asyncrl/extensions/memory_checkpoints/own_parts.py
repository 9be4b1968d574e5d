"""Reads a training state of which each rank sees its own file alone, as on machines without a common folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from asyncrl.train.checkpoint.checkpoint_files import (
    SentTensors,
    StateFiles,
    is_needed,
    parse_name,
    places_of,
)
from asyncrl.train.checkpoint.extra_state import PREFIX
from asyncrl.train.engine.deepspeed_engine import TrainEngine


def open_own_parts(engine: TrainEngine, folder: Path, trained: Mapping[str, TrainEngine]) -> SentTensors:
    """Return the stored tensors on every rank, of as many ranks under the same ZeRO stage as wrote them. A collective.

    Pieces that only one rank keeps stay there; of the rest each rank sends what is in its file.
    """
    file = StateFiles(folder, engine.rank)
    own = places_of(trained)
    listed = [[name, list(shape)] for name, shape in file.shapes.items()]
    kept: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for source in range(engine.num_ranks):
        for name, shape in engine.broadcast(listed if source == engine.rank else None, source):
            mine, numel = source == engine.rank, math.prod(shape)
            if not _of_one_rank(name, trained):
                body = engine.broadcast_bytes(save({name: file.whole(name)}) if mine else None, source)
                if not is_needed(name, numel, own):
                    continue
                kept[name] = load(body)[name]
            elif mine:
                kept[name] = file.whole(name)
            else:
                continue
            shapes[name] = tuple(shape)
    return SentTensors(kept, shapes)


def _of_one_rank(name: str, trained: Mapping[str, TrainEngine]) -> bool:
    """True for what only the rank that stored it reads: its pieces of a divided optimizer, its random state."""
    key, _ = parse_name(name)
    if key.startswith(PREFIX):
        return True
    prefix, colon, rest = key.rpartition(":")
    engine = trained.get(prefix + colon)
    parameter = rest.partition("/")[2]
    return engine is not None and engine.divided and any(piece.name == parameter for piece in engine.pieces)
