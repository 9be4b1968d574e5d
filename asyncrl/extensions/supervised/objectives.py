"""What supervised training minimises: the likelihood of answers, or preferences: which of two answers, and which alone.

    likelihood    -sum log pi(token) / number of tokens to learn
    one_token     -sum J(token) / number of tokens to learn (`asyncrl.extensions.supervised.one_token`)
    dpo           mean over pairs of -log σ(beta z)
    ipo           mean over pairs of (z - 1 / (2 beta))²
    kto           mean over answers of weight (1 - σ(± beta (g - drift)))

z is how much likelier the chosen answer has become than the rejected one, against the reference: the model that the
training started from; g is how much likelier a single answer has become (`asyncrl.algo.loss.preference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from asyncrl.algo.loss.preference import dpo_loss, ipo_loss, kto_loss, preference_logits
from asyncrl.extensions.supervised.demonstrations import Encoded
from asyncrl.extensions.supervised.one_token import OneToken
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.policy import Extras
from asyncrl.train.models.token_scores import Compared

Kind = Literal["likelihood", "one_token", "dpo", "ipo", "kto"]


class Objective(Protocol):
    """Sums over the rows of a micro-batch, which divided by the `size` of the whole step are its loss and metrics."""

    paired: bool
    """Whether rows 2i and 2i + 1 of a step are the chosen and the rejected answer, which one micro-batch holds."""
    drifts: bool
    """Whether rows 2i + 1 of a step are answers to other prompts, whose mean gain is the drift and which are not
    learned."""
    metrics: tuple[str, ...]
    """Names of what `sums` returns beside the loss; with any, the reference is read."""

    def size(self, rows: Sequence[Encoded]) -> float: ...

    def values(self, engine: TrainEngine, ids: Tensor, mask: Tensor, extras: Extras, seed: int) -> Tensor:
        """Return what `sums` reads of tokens [B,T], zero where `mask` is False. A collective under ZeRO-3.

        seed: of what is drawn, another one for every pass.
        """
        ...

    def sums(
        self, values: Tensor, reference: Tensor, marks: Tensor, drift: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]: ...


class OfLogProbabilities:
    """Reads the log-probability of each token."""

    def values(self, engine: TrainEngine, ids: Tensor, mask: Tensor, extras: Extras, seed: int) -> Tensor:
        return engine.logp(ids, mask, 1.0, extras)


class Likelihood(OfLogProbabilities):
    """The tokens to learn, each counting the same."""

    paired = drifts = False
    metrics: tuple[str, ...] = ()

    def size(self, rows: Sequence[Encoded]) -> float:
        return float(sum(int(row.mask[1:].sum()) for row in rows))

    def sums(
        self, values: Tensor, reference: Tensor, marks: Tensor, drift: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sum of the loss. values: [B,T] of the tokens to learn, zero elsewhere."""
        return -values.sum(), {}


class OneTokenRollout(Likelihood):
    """The tokens to learn, each counting the same, by what the policy would have written in their places."""

    def values(self, engine: TrainEngine, ids: Tensor, mask: Tensor, extras: Extras, seed: int) -> Tensor:
        learned = mask.clone()
        learned[:, 0] = False
        tokens = ids[learned]
        placed = torch.stack([tokens, torch.arange(len(tokens), device=tokens.device)], -1)
        drawn = Compared("one_token", placed.to(engine.device), OneToken(seed))
        return engine.outputs(ids, mask, 1.0, compared=drawn, extras=extras)["one_token"]


class Preference(OfLogProbabilities):
    """Pairs of answers to the same prompt, each pair counting the same."""

    paired, drifts = True, False
    metrics: tuple[str, ...] = ("accuracy", "margin")

    def __init__(self, kind: Kind, beta: float) -> None:
        self._loss, self._beta = {"dpo": dpo_loss, "ipo": ipo_loss}[kind], beta

    def size(self, rows: Sequence[Encoded]) -> float:
        return len(rows) / 2

    def sums(
        self, values: Tensor, reference: Tensor, marks: Tensor, drift: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sums of the loss, of the pairs whose chosen answer has gained more, and of `beta z`.

        values: [2P,T] of the tokens to learn, zero elsewhere; reference: [2P] of whole answers. No pairs may be there.
        """
        answers = values.sum(-1)
        pairs = len(answers) // 2
        chosen, rejected = answers[: 2 * pairs : 2], answers[1 : 2 * pairs : 2]
        z = preference_logits(chosen, rejected, reference[: 2 * pairs : 2], reference[1 : 2 * pairs : 2])
        # What is added is 0: every rank's pass must reach the weights, also one without pairs.
        loss = self._loss(z, self._beta).sum() + 0.0 * answers.sum()
        gained = z.detach()
        return loss, {"accuracy": (gained > 0).float().sum(), "margin": self._beta * gained.sum()}


class Desirability(OfLogProbabilities):
    """Single answers that are desirable or not."""

    paired, drifts = False, True
    metrics: tuple[str, ...] = ("accuracy", "margin")

    def __init__(self, beta: float) -> None:
        self._beta = beta

    def size(self, rows: Sequence[Encoded]) -> float:
        return float(len(rows))

    def sums(
        self, values: Tensor, reference: Tensor, marks: Tensor, drift: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the sums of the loss, of the answers that moved as they should relative to the drift, and of `beta`
        times by how much.

        values: [B,T] of the tokens to learn, zero elsewhere; reference, marks: [B]; marks are positive for desirable
        answers, negative for others, with their weight, and 0 for a row that stands for none.
        """
        gains = values.sum(-1) - reference
        desirable = marks > 0
        loss = (marks.abs() * kto_loss(gains, desirable, drift, self._beta)).sum()
        moved = torch.sign(marks) * (gains.detach() - drift)
        return loss, {"accuracy": (moved > 0).float().sum(), "margin": self._beta * moved.sum()}


def make_objective(kind: Kind, beta: float) -> Objective:
    """Return what `sft.objective` names."""
    if kind == "likelihood":
        return Likelihood()
    if kind == "one_token":
        return OneTokenRollout()
    return Desirability(beta) if kind == "kto" else Preference(kind, beta)
