"""How likely a model finds an answer, whatever its length."""

from __future__ import annotations

from torch import Tensor


def answer_probability(answer_logp: Tensor) -> Tensor:
    """[K+1] length-normalised probability of the answer, from its token log-probabilities [K+1, J]."""
    return answer_logp.mean(-1).exp()
