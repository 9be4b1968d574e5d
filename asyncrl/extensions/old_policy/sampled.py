"""The sequences in which one version has sampled tokens, for a trainer that scores them before it leaves the version.

An engine keeps them (`vllm_sampled`), of whoever asked it: players, agents behind the gateway, clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.errors import InputError

TOKEN = np.dtype("<i4")
SLACK_BYTES = 1 << 22
"""The bytes of tokens that are kept before it is worth looking for what is in others."""


@dataclass(frozen=True, slots=True, order=True)
class Sequence:
    """Context and sampled tokens."""

    tokens: bytes
    """Little-endian int32."""
    spans: tuple[tuple[int, int], ...]
    """Start and end of what the version has sampled."""

    @property
    def token_ids(self) -> np.ndarray:
        """[L] int32."""
        return np.frombuffer(self.tokens, TOKEN)

    @property
    def sampled(self) -> np.ndarray:
        """[L] bool."""
        found = np.zeros(len(self.token_ids), np.bool_)
        for start, end in self.spans:
            found[start:end] = True
        return found


def without_prefixes(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Return each sequence that no other one begins with, with the spans of those that it begins with.

    The context of a turn contains the turns before it. In the order of bytes whatever begins with a sequence comes
    right after it.
    """
    found: list[Sequence] = []
    for one in sorted(sequences):
        if found and one.tokens.startswith(found[-1].tokens):
            one = Sequence(one.tokens, tuple(sorted({*found.pop().spans, *one.spans})))
        found.append(one)
    return found


@dataclass(slots=True)
class SampledSequences:
    """What `version` has sampled in one engine."""

    version: int
    ended: list[Sequence] = field(default_factory=list)
    """The sequences of requests that have ended."""
    starts: dict[str, int] = field(default_factory=dict)
    """By the id of a request that began under an earlier version: how many tokens it had then."""
    _bytes: int = 0
    _kept_bytes: int = 0

    def end(self, request_id: str, token_ids: Iterable[int], context: int) -> None:
        """Keep what a request has sampled that ends now. context: its tokens that were not sampled."""
        one = self._sequence(request_id, token_ids, context)
        self.starts.pop(request_id, None)
        if one is None:
            return
        self.ended.append(one)
        self._bytes += len(one.tokens)
        if self._bytes > 2 * self._kept_bytes + SLACK_BYTES:
            self.ended = without_prefixes(self.ended)
            self._bytes = self._kept_bytes = sum(len(kept.tokens) for kept in self.ended)

    def renew(self, version: int, lengths: Mapping[str, int]) -> None:
        """Forget what the version before has sampled. lengths: tokens of the requests that go on, by id.

        The same version again, of a trainer that was restarted, has the same weights.
        """
        if version != self.version:
            self.version, self.ended, self.starts = version, [], dict(lengths)
            self._bytes = self._kept_bytes = 0

    def all(self, going: Iterable[tuple[str, Iterable[int], int]]) -> list[Sequence]:
        """Return what has been sampled. going: id, tokens and context of the requests that have not ended."""
        return without_prefixes(
            [*self.ended, *(one for given in going if (one := self._sequence(*given)) is not None)]
        )

    def _sequence(self, request_id: str, token_ids: Iterable[int], context: int) -> Sequence | None:
        tokens, start = np.fromiter(token_ids, TOKEN), self.starts.get(request_id, context)
        return Sequence(tokens.tobytes(), ((start, len(tokens)),)) if len(tokens) > start else None


def sequences_to_list(sequences: Iterable[Sequence]) -> list[list[Any]]:
    """Return what a message holds of sequences."""
    return [[[*map(list, one.spans)], one.tokens] for one in sequences]


def sequences_from_list(raw: Any, where: str) -> list[Sequence]:
    """Read sequences. Raises `InputError`."""
    if type(raw) is not list:
        raise InputError(f"{where} must be a list, got {type(raw).__name__}")
    found = []
    for index, item in enumerate(raw):
        if type(item) is not list or [type(part) for part in item] != [list, bytes]:
            raise InputError(f"{where}[{index}] must be [spans, tokens]")
        spans, tokens = item
        num_tokens, rest = divmod(len(tokens), TOKEN.itemsize)
        if rest:
            raise InputError(f"{where}[{index}]: must have {TOKEN.itemsize} bytes a token, got {len(tokens)}")
        for span in spans:
            numbers = type(span) is list and [type(part) for part in span] == [int, int]
            if not numbers or not 1 <= span[0] < span[1] <= num_tokens:
                raise InputError(
                    f"{where}[{index}]: spans must be [start, end] within 1 to {num_tokens}, got {str(span)[:64]}"
                )
        found.append(Sequence(tokens, tuple((start, end) for start, end in spans)))
    return found
