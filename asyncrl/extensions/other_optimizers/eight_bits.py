"""AdamW with moments of 8 bits, in blocks of 256 that share a scale (arXiv 2110.02861): bitsandbytes'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bitsandbytes.functional import dequantize_blockwise
from bitsandbytes.optim import AdamW8bit
from torch import Tensor, nn

from asyncrl.config import TrainConfig
from asyncrl.extensions.other_optimizers.memory import BLOCK
from asyncrl.train.engine.optimizers import ADAM_MOMENTS, Named, OwnState

BLOCKS_AT_ONCE = 2**16


def adamw_8bit(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> EightBits:
    """Return the optimizer of a run."""
    return EightBits([parameter for _, parameter in trained], **settings)


class EightBits(OwnState, AdamW8bit):  # type: ignore[misc]
    """Reads its moments as copies of float32, and keeps those that it is given in 8 bits."""

    def read_moment(self, flat: Tensor, moment: str) -> Tensor:
        """See `OwnState`.

        Scales may change in their last bit, to those which the copy gives back: a run that goes on and one that is
        resumed are then equal.
        """
        state = self.state[flat]
        number = 1 + ADAM_MOMENTS.index(moment)
        kept: Tensor = state[f"state{number}"]
        if kept.dtype != torch.uint8:
            return kept
        scales, values = state[f"absmax{number}"], state[f"qmap{number}"]
        found = dequantize_blockwise(kept, absmax=scales, code=values, blocksize=BLOCK)
        scales.copy_(_scales(_blocks(found), values))
        return found

    def write_moments(self, flat: Tensor, moments: Mapping[str, Tensor], num_steps: int) -> None:
        """See `OwnState`."""
        state = self.state[flat]
        eight: Any = self
        eight.fill_qmap()
        state["step"] = num_steps
        for number, (moment, levels) in enumerate(
            zip(ADAM_MOMENTS, ("dynamic", "udynamic"), strict=True), start=1
        ):
            if flat.numel() < eight.args.min_8bit_size:
                state[f"state{number}"] = moments[moment]
                continue
            values = eight.name2qmap[levels].to(flat.device)
            codes, scales = to_8_bits(moments[moment], values)
            state |= {f"state{number}": codes, f"qmap{number}": values, f"absmax{number}": scales}


def to_8_bits(tensor: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes (as `tensor` [N]) and scales of its blocks, so that what was in 8 bits before gets its codes again.

    values: what the codes stand for [256], ascending to 1. The lowest of signed ones is above -1, and stands for the
    largest of a block where that is negative.
    """
    blocks = _blocks(tensor)
    scales = _scales(blocks, values)
    borders = (values[1:] + values[:-1]) / 2
    codes = torch.empty(blocks.shape, dtype=torch.uint8, device=tensor.device)
    for rows in torch.arange(len(blocks), device=tensor.device).split(BLOCKS_AT_ONCE):
        each = blocks[rows] / scales[rows].clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        codes[rows] = torch.bucketize(each, borders, out_int32=True).to(torch.uint8)
    return codes.view(-1)[: tensor.numel()].view(tensor.shape).contiguous(), scales


def _blocks(tensor: Tensor) -> Tensor:
    return nn.functional.pad(tensor.view(-1), (0, -tensor.numel() % BLOCK)).view(-1, BLOCK)


def _scales(blocks: Tensor, values: Tensor) -> Tensor:
    """Return what the largest of each block stands for."""
    high, low = blocks.amax(1), -blocks.amin(1)
    return torch.where(low >= high, low / values[0].abs(), high) if float(values[0]) < 0 else high
