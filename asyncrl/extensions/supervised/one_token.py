"""One-token rollout: supervised rows learned by policy gradient, each token an episode of one action.

    J = mean over K drawn tokens a of r(a) log pi(a),   r = 1 where a is the row's token, else `OTHER`

Tokens are drawn from the trained policy itself at temperature `KAPPA`. A row's token that the policy hardly ever draws
is hardly learned: what it would not write, it is not pulled to, unlike by the likelihood.

Source: arXiv 2509.26313.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLES = 256
KAPPA = 1.3
OTHER = -0.1


def one_token_objective(log_pi: Tensor, right: Tensor, other: float = OTHER) -> Tensor:
    """[N] J of drawn tokens. log_pi: [N,K] their log-probabilities; right: [N,K] bool, whether they are the row's."""
    rewards = torch.where(right, 1.0, other)
    return (rewards * log_pi).mean(-1)


class OneToken:
    """J of tokens, from the logits before them.

    The passes that compute logits once more for their gradient draw the same tokens: a draw depends on `seed` and on
    the place of its first token. It also depends on how many are computed at once.
    """

    def __init__(self, seed: int, samples: int = SAMPLES, kappa: float = KAPPA, other: float = OTHER) -> None:
        self.seed, self.samples, self.kappa, self.other = seed, samples, kappa, other

    def __call__(self, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        """[N] J. logits: [N,V] at `temperature`; tokens: [N,2] the row's token and its place in the pass."""
        if not len(tokens):
            return logits.sum(-1)
        generator = torch.Generator(logits.device).manual_seed(self.seed + int(tokens[0, 1]))
        with torch.no_grad():
            weights = torch.softmax(logits.float() * (temperature / self.kappa), -1)
            drawn = torch.multinomial(weights, self.samples, replacement=True, generator=generator)
        log_pi = torch.log_softmax(logits.float(), -1).gather(1, drawn)
        return one_token_objective(log_pi, drawn == tokens[:, :1], self.other)
