"""The outer optimizer without a global mean: each member takes its step with one other, drawn anew each round (NoLoCo,
arXiv 2506.10911).

    g_i = phi_i - theta_i                      the pseudo-gradient of member i: its slow weights minus what it trained
    b_i <- alpha b_i + beta mean(g) + gamma (phi_i - mean(phi))                        means over the pair of i
    phi_i <- phi_i - b_i

Every member has slow weights phi and momentum b of its own. The last term draws the two of a pair together, and as
partners change, all members. One without a partner has itself alone in both means: the term is zero then.

What is from where: the paper's text was not at hand beyond its abstract. The formula is that of a summary of it, which
names alpha = 0.5 and beta = 0.7; gamma = beta is from the authors' code (jkolehm/noloco, `sparse_optimizer_c.py`). Both
terms then make one, which moves slow weights by beta towards the mean of what the pair has trained:

    b_i <- alpha b_i + beta (phi_i - mean(theta))

With alpha = 0 and beta = 1 that mean replaces the weights of both.

The bound on gamma is derived here, not the paper's: differences between members that train nothing must die out. Those
of two members follow d <- d - v, v <- alpha v + gamma d, which is stable for 0 < gamma < 2 (1 + alpha). Of more, random
pairs leave a share p of the squared differences inside pairs, N / (2 (N - 1)) for even N and 1 / 2 for odd N, and their
second moments die out for 0 < gamma < 2 (1 - alpha^2) / (1 + alpha (1 - 2 p)). As members come and go, the smallest of
these is taken, 2 (1 - alpha^2). Torch-free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np


def draw_pairs(members: Collection[int], fragment: int, round_number: int) -> list[tuple[int, ...]]:
    """Return the pairs of a round: numbers of members, of which an odd one out is alone. The same members in any order
    have the same pairs in the same round of a fragment, on any machine."""

    def place(member: int) -> bytes:
        return hashlib.sha256(f"{fragment}/{round_number}/{member}".encode()).digest()

    order = sorted(set(members), key=place)
    return [tuple(sorted(order[at : at + 2])) for at in range(0, len(order), 2)]


def gossip_step(
    own: np.ndarray,
    slow_weights: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    momentum_buffer: np.ndarray,
    learning_rate: float,
    momentum: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `(update, momentum buffer)` of one parameter of one member, as `nesterov_step` does: slow weights minus
    the update are the new ones. `own` are the member's slow weights; `slow_weights` and `gradients` are those of all
    that take part, one or two, its own among them. All have the parameter's shape; the buffer is zero before the first
    step."""
    share = np.float32(1.0 / len(gradients))
    gradient = share * np.sum(gradients, axis=0)
    apart = own - share * np.sum(slow_weights, axis=0)
    buffer = np.float32(momentum) * momentum_buffer + np.float32(learning_rate) * (gradient + apart)
    return buffer, buffer


def largest_rate(members: int, momentum: float) -> float:
    """Return the learning rate below which differences between so many members, some of whom may be away, die out."""
    return 2.0 * (1.0 + momentum) if members <= 2 else 2.0 * (1.0 - momentum**2)
