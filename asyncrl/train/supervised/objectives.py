"""What supervised training minimises: the likelihood of answers, or which of two answers is preferred.

    likelihood    -sum log pi(token) / number of tokens to learn
    dpo           mean over pairs of -log σ(beta z)
    ipo           mean over pairs of (z - 1 / (2 beta))²

z is how much likelier the chosen answer has become than the rejected one, against the reference: the model that the
training started from (`asyncrl.algo.loss.preference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from asyncrl.algo.loss.preference import dpo_loss, ipo_loss, preference_logits
from asyncrl.train.demonstrations import Encoded

Kind = Literal["likelihood", "dpo", "ipo"]


class Objective(Protocol):
    """Sums over the rows of a micro-batch, which divided by the `size` of the whole step are its loss and metrics."""

    paired: bool
    """Whether rows 2i and 2i + 1 of a step are the chosen and the rejected answer, which one micro-batch holds."""

    def size(self, rows: Sequence[Encoded]) -> float: ...

    def sums(self, logp: Tensor, reference: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]: ...


class Likelihood:
    """The tokens to learn, each counting the same."""

    paired = False

    def size(self, rows: Sequence[Encoded]) -> float:
        return float(sum(int(row.mask[1:].sum()) for row in rows))

    def sums(self, logp: Tensor, reference: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sum of the loss. logp: [B,T] of the tokens to learn, zero elsewhere."""
        return -logp.sum(), {}


class Preference:
    """Pairs of answers to the same prompt, each pair counting the same."""

    paired = True

    def __init__(self, kind: Kind, beta: float) -> None:
        self._loss, self._beta = {"dpo": dpo_loss, "ipo": ipo_loss}[kind], beta

    def size(self, rows: Sequence[Encoded]) -> float:
        return len(rows) / 2

    def sums(self, logp: Tensor, reference: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sums of the loss, of the pairs whose chosen answer has gained more, and of `beta z`.

        logp: [2P,T] of the tokens to learn, zero elsewhere; reference: [2P] of whole answers. No pairs may be there.
        """
        answers = logp.sum(-1)
        pairs = len(answers) // 2
        chosen, rejected = answers[: 2 * pairs : 2], answers[1 : 2 * pairs : 2]
        z = preference_logits(chosen, rejected, reference[: 2 * pairs : 2], reference[1 : 2 * pairs : 2])
        # What is added is 0: every rank's pass must reach the weights, also one without pairs.
        loss = self._loss(z, self._beta).sum() + 0.0 * answers.sum()
        gained = z.detach()
        return loss, {"accuracy": (gained > 0).float().sum(), "margin": self._beta * gained.sum()}


def make_objective(kind: Kind, beta: float) -> Objective:
    """Return what `sft.objective` names."""
    return Likelihood() if kind == "likelihood" else Preference(kind, beta)


def no_reference(count: int, device: torch.device) -> Tensor:
    """Return what stands for the reference where none is read, [count]."""
    return torch.zeros(count, device=device)
