"""Sampling a turn in pieces, where a stop string or a stream needs the text before the turn has ended.

Sampling is causal, so a turn drawn piece by piece has the distribution of one drawn at once; the engine's prefix
cache makes a piece cost little more than its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.generation import Generated, common_engine

PIECE_TOKENS = 32
_UNFINISHED = "\ufffd"
"""What the tokenizer writes for the first bytes of a character whose last bytes are not there yet."""


def join(pieces: Sequence[Generated]) -> Generated:
    """One turn from its pieces. The context cached for the first is what the turn found in the cache."""
    if len(pieces) == 1:
        return pieces[0]
    return Generated(
        np.concatenate([p.token_ids for p in pieces]),
        np.concatenate([p.logprobs for p in pieces]),
        np.concatenate([p.versions for p in pieces]),
        pieces[-1].finish_reason,
        pieces[0].cached_tokens,
        engine=common_engine(p.engine for p in pieces),
    )


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str]:
    """Return the position of the earliest stop string, and which it is; (-1, "") if there is none."""
    found = [(text.find(s), s) for s in stop if s and s in text]
    return min(found, default=(-1, ""))


def cut_at_stop(
    generated: Generated, stop: Sequence[str], decode: Callable[[np.ndarray], str]
) -> tuple[Generated, str]:
    """Cut a turn after the token that completes a stop string; return it and the string, "" when there is none.

    The string stays in the tokens: the policy did sample it. Later tokens are dropped; no client has read them.
    """
    if first_stop(decode(generated.token_ids), stop)[0] < 0:
        return generated, ""
    low, high = 1, len(generated.token_ids)
    while low < high:
        middle = (low + high) // 2
        if first_stop(decode(generated.token_ids[:middle]), stop)[0] >= 0:
            high = middle
        else:
            low = middle + 1
    cut = Generated(
        generated.token_ids[:low],
        generated.logprobs[:low],
        generated.versions[:low],
        "stop",
        generated.cached_tokens,
        generated.top_logprobs[:low],
        generated.prompt_logprobs,
        engine=generated.engine,
    )
    return cut, first_stop(decode(cut.token_ids), stop)[1]


def settled(text: str, stop: Sequence[str]) -> int:
    """How many characters of a growing text can be shown: no partial character, no prefix of a stop string."""
    end = len(text.rstrip(_UNFINISHED))
    for s in stop:
        for size in range(min(len(s) - 1, end), 0, -1):
            if text[:end].endswith(s[:size]):
                end -= size
                break
    return end
