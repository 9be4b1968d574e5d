"""The rows of a run: which are trained on, which are held out, and in which order they become tasks."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice

import numpy as np

from asyncrl.config_sections import DataConfig
from asyncrl.errors import ConfigError
from asyncrl.rows.scan import GoldsOf, Reader, ReaderOf, Scan, Scanned
from asyncrl.rows.settings import resolved, sources_of
from asyncrl.rows.source import Rows
from asyncrl.rows.template import ANSWER
from asyncrl.rows.tokens import token_counter, tokenizer_state
from asyncrl.types import Task

DRAWN = 1024
"""Draws among weighted sources that are made at once."""

KEPT_OPEN = 4
"""Data sets of this process that are kept open with what is known of their rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one source that one split uses."""

    rows: Rows
    read: Reader
    kept: np.ndarray
    """[N] int64, their numbers in the source, in its order."""
    weight: float
    number: int
    """Place among the sources of the split."""

    def task(self, index: int, env: str, split: str) -> Task:
        """Return row `index` of the source as a task. The same row is the same task in every epoch."""
        row_id = self.rows.row_id(index)
        named = f"{self.number}/{row_id}" if self.number else row_id
        return Task(id=named, env=env, seed=index, split=split, data=self.read(self.rows[index]))


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of both splits. No prompt of a held-out row is among those that are trained on."""

    train: list[Part]
    heldout: list[Part]
    settings: DataConfig
    notes: list[str] = field(default_factory=list)
    """What people are told at the start."""
    digest: str = ""
    """The digest of the prompts of both splits: equal for equal rows."""

    def size(self, split: str) -> int:
        """Return the number of rows of a split."""
        return sum(len(part.kept) for part in self._parts(split))

    def tasks(self, split: str, env: str) -> Iterator[Task]:
        """Yield the rows of a split as tasks of `env`: of "train" epoch after epoch without end, of "heldout" once.

        Each epoch has each row once, in an order that follows from `data.seed` and the epoch. With weights, each source
        has epochs of its own, and whose row comes next is drawn.
        """
        if split == "heldout":
            yield from self.epoch(0, env, split)
        elif any(part.weight for part in self.train):
            yield from self._drawn(env)
        elif self.train:
            yield from chain.from_iterable(self.epoch(number, env, split) for number in count())

    def epoch(self, number: int, env: str, split: str = "train") -> Iterator[Task]:
        """Yield each row of a split once, as tasks."""
        parts = self._parts(split)
        owners = np.repeat(np.arange(len(parts)), [len(part.kept) for part in parts])
        rows = np.concatenate([part.kept for part in parts] or [np.zeros(0, np.int64)])
        for at in self._order(len(rows), number):
            yield parts[owners[at]].task(int(rows[at]), env, split)

    def _drawn(self, env: str) -> Iterator[Task]:
        weights = np.array([part.weight for part in self.train])
        endless = [self._of_one(part, env) for part in self.train]
        rng = np.random.default_rng([self.settings.seed, len(weights)])
        while True:
            for chosen in rng.choice(len(weights), DRAWN, p=weights / weights.sum()):
                yield next(endless[chosen])

    def _of_one(self, part: Part, env: str) -> Iterator[Task]:
        for number in count():
            for at in self._order(len(part.kept), number):
                yield part.task(int(part.kept[at]), env, "train")

    def _order(self, size: int, epoch: int) -> Sequence[int]:
        if not self.settings.shuffle:
            return range(size)
        return np.random.default_rng([self.settings.seed, epoch]).permutation(size)  # type: ignore[return-value]

    def _parts(self, split: str) -> list[Part]:
        return self.heldout if split == "heldout" else self.train


def open_data(
    settings: DataConfig, tokenizer: str = "", reader: ReaderOf | None = None, golds: GoldsOf | None = None
) -> Data:
    """Read the rows of `[data]`, each once, and decide which are trained on and which are held out.

    tokenizer: folder or hub name of the model whose tokens `data.max_prompt_tokens` counts. reader: gives a format's
    reader, for sets that have one. golds: gives what says of a row why no answer can be right for a reward; such rows
    are left out. Asked again, it returns what it has found. Raises `ConfigError` for wrong settings,
    missing columns, a split without rows, and held-out prompts among the training rows; `InputError` naming file and
    row for one that cannot be used.
    """
    return _opened(settings.model_dump_json(), tokenizer, reader, golds)


@functools.lru_cache(maxsize=KEPT_OPEN)
def _opened(written: str, tokenizer: str, reader: ReaderOf | None, golds: GoldsOf | None) -> Data:
    settings = DataConfig.model_validate_json(written)
    never_right = golds(resolved(settings).reward) if golds is not None else None
    counter = token_counter(tokenizer) if settings.max_prompt_tokens else None
    notes: list[str] = []
    if not (settings.train or settings.heldout or resolved(settings).set):
        raise ConfigError(
            "data.train: missing; name a file, folder or data set of the hub, or a set by data.set"
        )
    scan = Scan(settings, reader, counter, never_right, notes, _asked(tokenizer if counter else "", golds))
    train = [scan.read(one, "train") for one in sources_of(settings, "train")]
    heldout = [scan.read(one, "heldout") for one in sources_of(settings, "heldout")]
    _check_weights(train)
    dedupe = settings.dedupe or resolved(settings).dedupe
    if heldout:
        kept_out = [one.usable for one in heldout]
        aside = np.unique(np.concatenate([one.prompts for one in heldout]))
        if not dedupe:
            _check_apart(train, heldout, aside)
    else:
        aside = _share(train, settings)
        heldout, kept_out = train, _first_of_each(train, aside)
    kept = _trained(train, aside, dedupe, settings, notes)
    found = Data(
        _parts(train, kept),
        [part for part in _parts(heldout, kept_out) if len(part.kept)],
        settings,
        notes,
        _digest(train, heldout, kept, kept_out),
    )
    _say_sizes(found, bool(sources_of(settings, "heldout")))
    return found


def _asked(tokenizer: str, golds: GoldsOf | None) -> str:
    """Return what decides what is found of rows besides the settings and the rows themselves."""
    return f"{tokenizer_state(tokenizer) if tokenizer else ''} {golds is not None}"


def _check_weights(train: Sequence[Scanned]) -> None:
    weighted = [one for one in train if one.weight]
    if weighted and len(weighted) < len(train):
        name = next(one.rows.name for one in train if not one.weight)
        raise ConfigError(f"data.train: give every source a weight, or none; {name!r} has none")


def _check_apart(train: Sequence[Scanned], heldout: Sequence[Scanned], aside: np.ndarray) -> None:
    """Refuse a prompt that is in both splits."""
    both = [np.flatnonzero(np.isin(one.prompts, aside)) for one in train]
    if not (total := sum(map(len, both))):
        return
    one, rows = next((one, rows) for one, rows in zip(train, both, strict=True) if len(rows))
    other, same = next(
        (other, places[0])
        for other in heldout
        if len(places := np.flatnonzero(other.prompts == one.prompts[rows[0]]))
    )
    todo = "Take other rows, or have these training rows left out by data.dedupe=true"
    if total == sum(len(one.prompts) for one in train):
        todo = "These are all there are: leave data.heldout out, and data.heldout_share of them is held out"
    raise ConfigError(
        f"data.heldout: {total} training rows have the prompt of a held-out row: {one.rows.where(int(rows[0]))}, and "
        f"{other.rows.where(int(same))}. {todo}"
    )


def _share(train: Sequence[Scanned], settings: DataConfig) -> np.ndarray:
    """Return the prompts that are held out of the training rows: whether one is follows from it and `data.seed` alone,
    so that it stays so when rows are added."""
    if not settings.heldout_share or not train:
        return np.zeros(0, np.uint64)
    prompts = np.unique(np.concatenate([one.prompts for one in train]))
    if len(prompts) < 2:
        raise ConfigError(
            f"data.heldout_share: {settings.heldout_share:g} of {len(prompts)} prompt leaves none to train on; give "
            "data.heldout, or 0 and eval.tasks=0"
        )
    mixed = _mixed(prompts ^ np.uint64(settings.seed))
    chosen = mixed < np.uint64(settings.heldout_share * 2.0**64)
    if not chosen.any() or chosen.all():
        chosen = mixed == (mixed.min() if not chosen.any() else mixed.max())
        chosen = chosen if len(prompts) > 1 else ~chosen
    return prompts[chosen]


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return 64-bit values mixed by the finaliser of SplitMix64, so that each bit depends on all."""
    with np.errstate(over="ignore"):
        values = (values + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def _first_of_each(parts: Sequence[Scanned], prompts: np.ndarray) -> list[np.ndarray]:
    """Return of each source which rows are the first with one of these prompts."""
    first = _firsts(parts)
    return [mask & one.usable & np.isin(one.prompts, prompts) for one, mask in zip(parts, first, strict=True)]


def _firsts(parts: Sequence[Scanned]) -> list[np.ndarray]:
    """Return of each source which rows are the first with their prompt, over all sources."""
    if not parts:
        return []
    every = np.concatenate([one.prompts for one in parts])
    mask = np.zeros(len(every), bool)
    mask[np.unique(every, return_index=True)[1]] = True
    return np.split(mask, np.cumsum([len(one.prompts) for one in parts])[:-1])


def _trained(
    train: Sequence[Scanned], aside: np.ndarray, dedupe: bool, settings: DataConfig, notes: list[str]
) -> list[np.ndarray]:
    """Return of each source which rows are trained on. Raises `ConfigError` where none is left."""
    kept = [one.usable & ~np.isin(one.prompts, aside) for one in train]
    apart = sum(int(mask.sum()) for mask in kept)
    if dedupe:
        kept = [mask & first for mask, first in zip(kept, _firsts(train), strict=True)]
        if dropped := apart - sum(int(mask.sum()) for mask in kept):
            notes.append(f"data.dedupe: {dropped} rows have the prompt of an earlier one and are left out")
    for place, (mask, one) in enumerate(zip(kept, train, strict=True)):
        if one.tokens is not None:
            long = mask & (one.tokens > settings.max_prompt_tokens)
            mask &= ~long
            if long.any():
                notes.append(
                    f"data.max_prompt_tokens: {int(long.sum())} rows of {one.rows.name} have longer prompts and are "
                    "left out"
                )
        if settings.limit:
            mask[np.flatnonzero(mask)[settings.limit :]] = False
        if not mask.any():
            if not one.usable.any():
                # Columns or a reward are wrong, and no row.
                raise ConfigError(
                    f"data.reward: {resolved(settings).reward!r} can judge none of these {len(mask)} rows: "
                    f"{one.why}{_hint(one, settings)}"
                )
            raise ConfigError(
                f"data.train: {one.rows.name}: none of its {len(mask)} rows is left to train on: "
                f"{_where_they_are(train, place, aside, dedupe, settings)}"
            )
    return kept


def _hint(one: Scanned, settings: DataConfig) -> str:
    """Return which setting may help where a reward can judge no row."""
    if settings.answer or ANSWER in one.read(one.rows[0]):
        return ""
    return "; data.answer names the column with the right answer"


def _where_they_are(
    train: Sequence[Scanned], place: int, aside: np.ndarray, dedupe: bool, settings: DataConfig
) -> str:
    """Return why rows of a source are not trained on, with how many they are; each counts once."""
    one = train[place]
    causes = [
        (~one.usable, f"have an answer that nothing can match, such as {one.why}"),
        (np.isin(one.prompts, aside), "have a prompt that is held out (data.heldout, data.heldout_share)"),
    ]
    if dedupe:
        causes.append((~_firsts(train)[place], "have the prompt of an earlier row (data.dedupe)"))
    if one.tokens is not None:
        causes.append((one.tokens > settings.max_prompt_tokens, "are longer than data.max_prompt_tokens"))
    left = np.ones(len(one.usable), bool)
    parts: list[str] = []
    for mask, cause in causes:
        if found := int((left & mask).sum()):
            parts.append(f"{found} {cause}")
        left &= ~mask
    return ", ".join(parts)


def _parts(scanned: Sequence[Scanned], kept: Sequence[np.ndarray]) -> list[Part]:
    return [
        Part(one.rows, one.read, np.flatnonzero(mask), one.weight, number)
        for number, (one, mask) in enumerate(zip(scanned, kept, strict=True))
    ]


def _digest(
    train: Sequence[Scanned],
    heldout: Sequence[Scanned],
    kept: Sequence[np.ndarray],
    kept_out: Sequence[np.ndarray],
) -> str:
    found = hashlib.blake2b(digest_size=8)
    for scanned, masks in ((train, kept), (heldout, kept_out)):
        for one, mask in zip(scanned, masks, strict=True):
            found.update(one.prompts[mask].tobytes() + b"/")
    return found.hexdigest()


def _say_sizes(data: Data, own: bool) -> None:
    trained, aside = data.size("train"), data.size("heldout")
    share = (
        "" if own or not aside else f" (data.heldout_share = {data.settings.heldout_share:g} of the prompts)"
    )
    data.notes.insert(0, f"{trained} rows to train on, {aside} held out{share}")


def first_rows(data: Data, split: str, env: str, number: int) -> list[Task]:
    """Return the first `number` tasks of a split, in the order they are played in."""
    return list(islice(data.tasks(split, env), number))
