"""LoRA on vLLM's CPU backend: one small matrix product for each adapter in the batch.

vLLM's own version copies an adapter's matrices once per token, and applies the adapter in the last slot to tokens
without an adapter (index -1), which is wrong as soon as a batch holds both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class GroupedPunica(PunicaWrapperCPU):
    """Applies adapters to the tokens that name them and leaves the others alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._groups: list[tuple[int, Tensor]] = []
        """Slot and token positions of each adapter in the batch."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Called by vLLM before each pass whose mix of adapters differs from the last one's."""
        super().update_metadata(*args, **kwargs)
        indices = self.token_lora_indices
        self._groups = [
            (slot, (indices == slot).nonzero()[:, 0]) for slot in indices.unique().tolist() if slot >= 0
        ]

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        """Add `(x A^T) B^T * scale` to y in place.

        x [N,I], y [N,O]; each A [slots,1,R,I] and B [slots,1,O_s,R] serve one of the `output_slices` of y.
        """
        for slot, rows in self._groups:
            given = x if len(rows) == len(x) else x[rows]
            parts = [
                torch.nn.functional.linear(torch.nn.functional.linear(given, a[slot, 0]), b[slot, 0])
                for a, b in zip(lora_a_stacked, lora_b_stacked, strict=True)
            ]
            start = 0
            for part, width in zip(parts, output_slices, strict=True):
                y[:, start : start + width].index_add_(0, rows, part.to(y.dtype), alpha=scale)
                start += width
