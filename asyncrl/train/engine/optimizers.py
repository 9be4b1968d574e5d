"""The optimizers of `train.optimizer`: AdamW, which keeps two moments of each trained parameter in float32 (arXiv
1711.05101), and what extensions add (`optimizers`).

DeepSpeed gives them flat parts of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from asyncrl.config import TrainConfig
from asyncrl.extensions.table import by_name
from asyncrl.train.engine.pieces import Piece

EPS = 1e-8
ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's running means of the gradient and of its square, as torch names them."""

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
    build = BUILDERS.get(train.optimizer) or by_name("optimizers")[train.optimizer].load()
    return build(trained, train, settings)


def _adamw(trained: Named, train: TrainConfig, settings: dict[str, Any]) -> Optimizer:
    every = [parameter for _, parameter in trained]
    if train.offload != "none" and torch.cuda.is_available():
        # Its states are in the memory of a machine with GPUs, where DeepSpeed's Adam for CPUs is compiled.
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(every, adamw_mode=True, **settings)
    return AdamW(every, fused=fused(), **settings)


BUILDERS: dict[str, Callable[[Named, TrainConfig, dict[str, Any]], Optimizer]] = {
    "adamw": _adamw,
}
"""By `train.optimizer`, those of the core. The builder of an extension is called alike."""


class OwnState:
    """What an optimizer says of itself that keeps something else than AdamW, or asks about the engine. Here it does as
    AdamW."""

    state: Any

    def attach(self, pieces: Callable[[], Sequence[Piece]], divided: bool, device: Any) -> None:
        """See the function `attach`."""

    def moments_of(self, piece: Piece) -> tuple[str, ...]:
        """Return the names of what it keeps of a piece, element by element."""
        return ADAM_MOMENTS

    def read_moment(self, flat: Tensor, moment: str) -> Tensor:
        """Return what it keeps of a flat tensor, laid out as it is: itself, or a float32 copy."""
        found: Tensor = self.state[flat][moment]
        return found

    def write_moments(self, flat: Tensor, moments: Mapping[str, Tensor], num_steps: int) -> None:
        """Keep what it would keep of a flat tensor after so many steps."""
        _write_adamw(self, flat, moments, num_steps)


def attach(optimizer: Optimizer, pieces: Callable[[], Sequence[Piece]], divided: bool, device: Any) -> None:
    """Tell an optimizer, where it asks, about the engine that steps it.

    pieces: returns what its flat tensors consist of. divided: whether they hold shares of this rank. device: where the
    model computes.
    """
    if isinstance(optimizer, OwnState):
        optimizer.attach(pieces, divided, device)


def fused() -> bool:
    """True where AdamW updates each entry in one kernel. The other ways keep the roots of all second moments beside
    them, 4 bytes a parameter; on a CPU, which has room, they are as fast."""
    return torch.cuda.is_available()


def moments_of(optimizer: Optimizer, piece: Piece) -> tuple[str, ...]:
    """Return the names of what the optimizer keeps of a piece, element by element."""
    return optimizer.moments_of(piece) if isinstance(optimizer, OwnState) else ADAM_MOMENTS


def steps_taken(optimizer: Optimizer) -> int:
    """Return the number of optimizer steps, which Adam's bias correction reads."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def read_moment(optimizer: Optimizer, flat: Tensor, moment: str) -> Tensor:
    """Return what the optimizer keeps of a flat tensor, laid out as it is: itself, or a float32 copy."""
    if isinstance(optimizer, OwnState):
        return optimizer.read_moment(flat, moment)
    found: Tensor = optimizer.state[flat][moment]
    return found


def write_moments(optimizer: Optimizer, flat: Tensor, moments: Mapping[str, Tensor], num_steps: int) -> None:
    """Give the optimizer what it would keep of a flat tensor after so many steps; it keeps the tensors given."""
    if isinstance(optimizer, OwnState):
        optimizer.write_moments(flat, moments, num_steps)
    else:
        _write_adamw(optimizer, flat, moments, num_steps)


def _write_adamw(optimizer: Any, flat: Tensor, moments: Mapping[str, Tensor], num_steps: int) -> None:
    state = optimizer.state[flat]
    # torch counts in tensors, DeepSpeed's Adam for CPUs in integers.
    where = flat.device if optimizer.defaults.get("fused") else "cpu"
    state["step"] = (
        torch.tensor(float(num_steps), device=where) if isinstance(optimizer, AdamW) else num_steps
    )
    state.update(moments)
