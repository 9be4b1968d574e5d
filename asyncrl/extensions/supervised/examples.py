"""Conversations as tokens with a loss mask, and the rows of each optimizer step."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.conversations import WEIGHT, learned
from asyncrl.extensions.supervised.demonstrations import Demonstration, Encoded, encode
from asyncrl.extensions.supervised.pairs import Pair
from asyncrl.extensions.supervised.verdicts import Verdict
from asyncrl.progress import progress


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows of tokens, in the order of their source."""

    rows: list[Encoded]
    num_long: int
    """Rows that were left out because they have too many tokens."""
    marks: np.ndarray | None = None
    """[B] float32 of verdicts: the weight of a desirable answer, the negative weight of another one, and 0 for an
    answer to another row's prompt. Both kinds of answers weigh the same in sum."""

    @property
    def lengths(self) -> list[int]:
        return [len(row.ids) for row in self.rows]


def encode_rows(
    renderer: ChatRenderer,
    conversations: Iterable[tuple[str, Demonstration]],
    max_length: int,
    limit: int = 0,
    total: int = 0,
    on_kept: Callable[[], None] = lambda: None,
) -> Examples:
    """Return the tokens of conversations, rendered by the model's own template; rows beyond `max_length` are left out.

    limit: take so many rows at most, 0 for all. total: how many there are, for the lines of progress. on_kept:
    called after each row that is kept. Raises `InputError` naming a row that the template refuses, and where no row is
    left.
    """
    rows: list[Encoded] = []
    longest = num_long = 0
    with progress("sft: making tokens of", min(limit, total) if limit else total, "rows") as advance:
        for where, conversation in conversations:
            try:
                row = encode_conversation(renderer, conversation)
            except (InputError, ConfigError) as error:
                raise InputError(f"{where}: {error}") from error
            longest = max(longest, len(row.ids))
            if len(row.ids) > max_length:
                num_long += 1
            else:
                rows.append(row)
                on_kept()
            advance(1)
            if limit and len(rows) == limit:
                break
    if not rows:
        raise InputError(_none_left(num_long, max_length, longest))
    return Examples(rows, num_long)


def encode_pairs(
    renderer: ChatRenderer, pairs: Iterable[tuple[str, Pair]], max_length: int, limit: int = 0, total: int = 0
) -> Examples:
    """Return the tokens of pairs, two rows for each: the chosen answer and the rejected one. See `encode_rows`; a pair
    is left out where either is too long."""
    rows: list[Encoded] = []
    longest = num_long = 0
    with progress("sft: making tokens of", min(limit, total) if limit else total, "pairs") as advance:
        for where, pair in pairs:
            try:
                both = [encode_conversation(renderer, one) for one in (pair.chosen, pair.rejected)]
            except (InputError, ConfigError) as error:
                raise InputError(f"{where}: {error}") from error
            length = max(len(row.ids) for row in both)
            longest = max(longest, length)
            num_long += length > max_length
            rows += both if length <= max_length else []
            advance(1)
            if limit and len(rows) == 2 * limit:
                break
    if not rows:
        raise InputError(_none_left(num_long, max_length, longest))
    return Examples(rows, num_long)


def encode_verdicts(
    renderer: ChatRenderer,
    verdicts: Iterable[tuple[str, Verdict]],
    max_length: int,
    limit: int = 0,
    total: int = 0,
) -> Examples:
    """Return the tokens of verdicts, two rows for each: prompt and answer, and the prompt with the answer of the row
    before, the first row's with the last one's, as far as `max_length` has room. See `encode_rows`."""
    desirable: list[bool] = []

    def noted() -> Iterator[tuple[str, Demonstration]]:
        for where, verdict in verdicts:
            desirable.append(verdict.desirable)
            yield where, verdict.conversation

    kept: list[bool] = []
    found = encode_rows(renderer, noted(), max_length, limit, total, lambda: kept.append(desirable[-1]))
    of_kind = {label: kept.count(label) for label in (False, True)}
    rows: list[Encoded] = []
    for row, before in zip(found.rows, [found.rows[-1], *found.rows[:-1]], strict=True):
        rows += [row, _answered_by(row, before, max_length)]
    marks = np.zeros(len(rows), np.float32)
    marks[::2] = [(1 if label else -1) * len(kept) / (2 * of_kind[label]) for label in kept]
    return Examples(rows, found.num_long, marks)


def _answered_by(row: Encoded, other: Encoded, max_length: int) -> Encoded:
    """Return a row with another row's answer."""
    start, begins = int(row.mask.argmax()), int(other.mask.argmax())
    ids = np.concatenate([row.ids[:start], other.ids[begins:]])[:max_length]
    mask = np.concatenate([row.mask[:start], other.mask[begins:]])[:max_length]
    return replace(row, ids=ids, mask=mask)


def _none_left(num_long: int, max_length: int, longest: int) -> str:
    why = (
        f"all {num_long} have more than {max_length} tokens (the longest {longest})"
        if num_long
        else "there is none"
    )
    return f"sft: no row to learn from: {why}; see sft.max_length and engine.max_model_len"


def encode_conversation(renderer: ChatRenderer, conversation: Demonstration) -> Encoded:
    """Return the tokens up to the last turn to learn from, with a mask on all such turns."""
    messages = list(conversation.messages)
    while not learned(messages[-1]):
        messages.pop()
    plain = [{key: value for key, value in message.items() if key != WEIGHT} for message in messages]
    row = encode(renderer, replace(conversation, messages=plain))
    if all(learned(message) for message in messages if message["role"] == "assistant"):
        return row
    mask = row.mask.copy()
    turns = _turns(mask.tolist())
    spoken = [message for message in messages if message["role"] == "assistant"]
    for (start, end), message in zip(turns, spoken, strict=True):
        mask[start:end] = learned(message)
    return replace(row, mask=mask)


def as_text(renderer: ChatRenderer, row: Encoded, most: int = 600) -> str:
    """Return a row for people, with what is learned between « and »; what no terminal shows is left out."""
    shown, place = [], 0
    for start, end in _turns(row.mask.tolist()):
        shown += [_decoded(renderer, row.ids[place:start]), "«", _decoded(renderer, row.ids[start:end]), "»"]
        place = end
    text = "".join([*shown, _decoded(renderer, row.ids[place:])])
    text = "".join(one for one in text if one.isprintable() or one == "\n")
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def _decoded(renderer: ChatRenderer, ids: np.ndarray) -> str:
    return renderer.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def _turns(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each turn of the assistant begins and ends."""
    found: list[tuple[int, int]] = []
    start = -1
    for place, own in enumerate([*mask, False]):
        if own and start < 0:
            start = place
        elif not own and start >= 0:
            found.append((start, place))
            start = -1
    return found


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return rows put together into bins of up to `size` tokens: best fit, the longest rows first.

    lengths: [B] tokens, none above `size`. A row goes where it leaves the least room, among equals into the bin that
    has waited longest; bins are in the order in which they were begun.
    """
    bins: list[list[int]] = []
    rooms: list[tuple[int, int, int]] = []
    """Room of each bin, when it came to have it, and the bin's number; in this order."""
    for time, row in enumerate(sorted(range(len(lengths)), key=lambda row: -lengths[row])):
        place = bisect_left(rooms, (lengths[row], -1, -1))
        if place == len(rooms):
            bins.append([])
            room, number = size, len(bins) - 1
        else:
            room, _, number = rooms.pop(place)
        bins[number].append(row)
        insort(rooms, (room - lengths[row], time, number))
    return bins


class Schedule:
    """Which rows each optimizer step learns from, as a function of nothing but its settings: a run that is resumed goes
    on with the rows that would have followed."""

    def __init__(
        self,
        bins: Sequence[Sequence[int]],
        batch_size: int,
        epochs: float = 1.0,
        steps: int = 0,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """bins: what is drawn together: single rows, or those that are packed. steps: of all training, 0 for those of
        `epochs`."""
        self._bins, self._batch_size = bins, batch_size
        self._shuffle, self._seed = shuffle, seed
        drawn = max(1, round(epochs * len(bins)))
        self.num_steps = steps or -(-drawn // batch_size)
        self._drawn = steps * batch_size or drawn
        """Bins of all steps."""
        self._epoch = -1
        self._order: list[int] = []
        """The order of the bins in the epoch that was drawn from last."""

    def rows(self, step: int) -> list[int]:
        """Return the rows of a step, counted from 0. The last step of whole epochs may have fewer."""
        first = step * self._batch_size
        places = range(first, min(first + self._batch_size, self._drawn))
        return [row for place in places for row in self._bins[self._bin(place)]]

    def _bin(self, place: int) -> int:
        epoch, within = divmod(place, len(self._bins))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._bins)))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        return self._order[within]
