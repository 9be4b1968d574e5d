"""The optimizers of `train.optimizer`.

- `adamw` keeps two moments of each trained parameter in float32 (arXiv 1711.05101).
- `muon` moves matrices by the orthogonalized momentum of their gradient, which is all it keeps of them (Jordan et al.
  2024; scaled to AdamW's steps as in arXiv 2502.16982), and the rest as adamw does.
- `adamw_8bit` is adamw with moments of 8 bits, in blocks of 256 that share a scale (arXiv 2110.02861).

DeepSpeed gives them flat parts of the parameters. Its own Muon is not used: it clips the orthogonalized update under
some ZeRO stages and types and the gradient under others, and keeps a momentum whose layout depends on the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim._muon import _zeropower_via_newtonschulz

from asyncrl.config import TrainConfig
from asyncrl.train.engine.pieces import Piece, buckets, whole_shape

EPS = 1e-8
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's running means of the gradient and of its square, as torch names them."""
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
BLOCK = 256
"""Elements that share a scale in 8 bits."""
BLOCKS_AT_ONCE = 2**16


Named = list[tuple[str, nn.Parameter]]


def make_optimizer(train: TrainConfig, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Return the optimizer of the trained ones among `parameters`."""
    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    settings: dict[str, Any] = {
        "lr": train.learning_rate,
        "betas": train.betas,
        "eps": EPS,
        "weight_decay": 0.0,
    }
    return BUILDERS[train.optimizer](trained, train, settings)


def _muon(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> Optimizer:
    return Muon(trained, fused=fused(), **settings)


def _adamw_8bit(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> Optimizer:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit([parameter for _, parameter in trained], **settings)


def _adamw(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> Optimizer:
    every = [parameter for _, parameter in trained]
    if train.offload != "none" and torch.cuda.is_available():
        # Its states are in the memory of a machine with GPUs, where DeepSpeed's Adam for CPUs is compiled.
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(every, adamw_mode=True, **settings)
    return AdamW(every, fused=fused(), **settings)


BUILDERS: dict[str, Callable[[Named, TrainConfig, dict[str, Any]], Optimizer]] = {
    "adamw": _adamw,
    "muon": _muon,
    "adamw_8bit": _adamw_8bit,
}
"""By `train.optimizer`."""


def attach(optimizer: Optimizer, pieces: Callable[[], Sequence[Piece]], divided: bool, device: Any) -> None:
    """Tell an optimizer, where it asks, about the engine that steps it.

    pieces: returns what its flat tensors consist of. divided: whether they hold shares of this rank. device: where the
    model computes.
    """
    if isinstance(optimizer, Muon):
        optimizer.pieces, optimizer.divided, optimizer.device = pieces, divided, device


def fused() -> bool:
    """True where AdamW updates each entry in one kernel. The other ways keep the roots of all second moments beside
    them, 4 bytes a parameter; on a CPU, which has room, they are as fast."""
    return torch.cuda.is_available()


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """True for what Muon orthogonalizes: weights of linear layers, and of experts that are kept as one tensor."""
    return len(shape) >= 2 and not any(part in name for part in NOT_MATRICES)


class Muon(AdamW):
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


def moment_bytes(optimizer: str, name: str, shape: Sequence[int]) -> int:
    """Return how many bytes an optimizer keeps of a parameter, its float32 copy left out."""
    numel = math.prod(shape)
    if optimizer == "adamw_8bit":
        return 2 * numel + 2 * 4 * -(-numel // BLOCK)
    return 4 * numel * (1 if optimizer == "muon" and is_matrix(name, shape) else 2)


def moments_of(optimizer: Optimizer, piece: Piece) -> tuple[str, ...]:
    """Return the names of what the optimizer keeps of a piece, element by element."""
    if isinstance(optimizer, Muon) and is_matrix(piece.name, piece.shape):
        return MOMENTUM
    return ADAM_MOMENTS


def steps_taken(optimizer: Optimizer) -> int:
    """Return the number of optimizer steps, which Adam's bias correction reads."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def read_moment(optimizer: Optimizer, flat: Tensor, moment: str) -> Tensor:
    """Return what the optimizer keeps of a flat tensor, laid out as it is: itself, or a float32 copy of 8 bits.

    Scales of 8 bits may change in their last bit, to those which the copy gives back: a run that goes on and one that
    is resumed are then equal.
    """
    state = optimizer.state[flat]
    if not _in_8_bits(optimizer):
        return state[moment]
    number = 1 + ADAM_MOMENTS.index(moment)
    kept = state[f"state{number}"]
    if kept.dtype != torch.uint8:
        return kept
    from bitsandbytes.functional import dequantize_blockwise

    scales, values = state[f"absmax{number}"], state[f"qmap{number}"]
    found = dequantize_blockwise(kept, absmax=scales, code=values, blocksize=BLOCK)
    scales.copy_(_scales(_blocks(found), values))
    return found


def write_moments(optimizer: Optimizer, flat: Tensor, moments: Mapping[str, Tensor], num_steps: int) -> None:
    """Give the optimizer what it would keep of a flat tensor after so many steps; it keeps the tensors given."""
    state = optimizer.state[flat]
    if not _in_8_bits(optimizer):
        # torch counts in tensors, DeepSpeed's Adam for CPUs in integers.
        where = flat.device if optimizer.defaults.get("fused") else "cpu"
        state["step"] = (
            torch.tensor(float(num_steps), device=where) if isinstance(optimizer, AdamW) else num_steps
        )
        state.update(moments)
        return
    eight: Any = optimizer
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


def _in_8_bits(optimizer: Optimizer) -> bool:
    return type(optimizer).__name__ == "AdamW8bit"
