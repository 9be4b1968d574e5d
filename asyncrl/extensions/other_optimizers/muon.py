"""Muon moves matrices by the orthogonalized momentum of their gradient, which is all it keeps of them (Jordan et al.
2024; scaled to AdamW's steps as in arXiv 2502.16982), and the rest as AdamW does.

DeepSpeed's own is not used: it clips the orthogonalized update under some ZeRO stages and types and the gradient under
others, and keeps a momentum whose layout depends on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim._muon import _zeropower_via_newtonschulz

from asyncrl.config import TrainConfig
from asyncrl.train.engine import optimizers
from asyncrl.train.engine.optimizers import Named, OwnState
from asyncrl.train.engine.pieces import Piece, buckets, whole_shape

MOMENTUM = ("momentum_buffer",)
NOT_MATRICES = ("embed", "lm_head", "value_head", "wte", "wpe")
"""Parts of the names of parameters that are matrices in shape alone: each row of theirs is a thing of its own."""
MUON_MOMENTUM = 0.95
COEFFICIENTS, NUM_ITERATIONS, NORM_EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7
"""The constants of the Newton-Schulz iteration, Jordan's."""
ADAMW_RMS = 0.2
"""Root mean square of an entry of AdamW's updates: Muon's are scaled to it, so that both take one learning rate."""
GATHERED_ELEMENTS = 64 * 2**20
"""Elements of matrices that are gathered at once, at most, or one larger matrix."""


def muon(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> Muon:
    """Return the optimizer of a run."""
    return Muon(trained, fused=optimizers.fused(), **settings)


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """True for what Muon orthogonalizes: weights of linear layers, and of experts that are kept as one tensor."""
    return len(shape) >= 2 and not any(part in name for part in NOT_MATRICES)


class Muon(OwnState, AdamW):
    """Muon for matrices, AdamW for the rest, on whatever flat tensors DeepSpeed puts in the parameters' place."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], **settings: Any) -> None:
        named = list(parameters)
        matrices = [p for name, p in named if is_matrix(name, whole_shape(p))]
        chosen = set(map(id, matrices))
        rest = [p for _, p in named if id(p) not in chosen]
        groups = [{"params": matrices, "orthogonal": True}, {"params": rest, "orthogonal": False}]
        super().__init__([group for group in groups if group["params"]], **settings)
        self.pieces: Callable[[], Sequence[Piece]] = lambda: ()
        """Returns what the flat tensors consist of."""
        self.divided = False
        """Whether they hold shares of this rank, instead of whole parameters."""
        self.device = torch.device("cpu")
        """Where matrices are orthogonalized and ranks can exchange them."""

    def attach(self, pieces: Callable[[], Sequence[Piece]], divided: bool, device: Any) -> None:
        """See `OwnState`."""
        self.pieces, self.divided, self.device = pieces, divided, device

    def moments_of(self, piece: Piece) -> tuple[str, ...]:
        """See `OwnState`."""
        return MOMENTUM if is_matrix(piece.name, piece.shape) else super().moments_of(piece)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the flat tensors' gradients. A collective where they are divided."""
        every = self.param_groups
        try:
            self.param_groups = [group for group in every if not group["orthogonal"]]
            if self.param_groups:
                super().step()
        finally:
            self.param_groups = every
        for group in every:
            for flat in group["params"] if group["orthogonal"] else ():
                if flat.grad is not None:
                    self._step_matrices(flat, flat.grad, group["lr"])

    def _step_matrices(self, flat: Tensor, gradient: Tensor, learning_rate: float) -> None:
        state = self.state[flat]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["momentum_buffer"] = torch.zeros_like(flat)
        state["step"] += 1
        state["momentum_buffer"].lerp_(gradient, 1 - MUON_MOMENTUM)
        update = gradient.lerp(state["momentum_buffer"], MUON_MOMENTUM)
        mine = (piece for piece in self.pieces() if piece.flat is flat)
        for bucket in buckets(mine, lambda piece: piece.whole_numel, GATHERED_ELEMENTS):
            for piece, whole in zip(bucket, self._wholes(bucket, update), strict=True):
                if not piece.numel:
                    continue
                step = orthogonal(whole.view(piece.shape)).reshape(-1).narrow(0, piece.start, piece.numel)
                scale = ADAMW_RMS * max(piece.shape[-2:]) ** 0.5
                piece.of(flat).add_(step.to(flat), alpha=-learning_rate * scale)

    def _wholes(self, bucket: Sequence[Piece], update: Tensor) -> Sequence[Tensor]:
        """Return the whole flattened matrices of which the ranks have pieces."""
        if not self.divided:
            return [piece.of(update) for piece in bucket]
        sizes = [piece.whole_numel for piece in bucket]
        gathered = torch.zeros(sum(sizes), device=self.device)
        wholes = gathered.split(sizes)
        for piece, whole in zip(bucket, wholes, strict=True):
            whole.narrow(0, piece.start, piece.numel).copy_(piece.of(update))
        dist.all_reduce(gathered)
        return wholes


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [...,A,B] with all singular values brought near 1, in bfloat16, one after the other."""
    each = matrices.reshape(-1, *matrices.shape[-2:])
    found = [_zeropower_via_newtonschulz(one, COEFFICIENTS, NUM_ITERATIONS, NORM_EPS) for one in each]
    return torch.stack(found).view(matrices.shape)
