"""All kinds of extras, and what is done with every one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Collector, Kind, Tokens
from asyncrl.errors import InputError
from asyncrl.extensions.table import rows as rows_at
from asyncrl.types import Group

ROWS = {row.name: row for row in rows_at("token_extras")}
"""By the name of each kind. Of a row's `fields` of the wire form an engine reports those that it knows under the same
names."""


class _Kinds(Mapping[str, Kind]):
    """The kinds of the table. Each is imported when it is first asked for: most runs have none."""

    def __getitem__(self, name: str) -> Kind:
        return _kind(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ROWS)

    def __len__(self) -> int:
        return len(ROWS)

    def with_fields(self, has: Callable[[str], bool]) -> Iterator[tuple[str, Kind]]:
        """Yield those of which a message has fields. has: whether it has one."""
        for name, row in ROWS.items():
            if any(map(has, row.fields)):
                yield name, self[name]


@functools.cache
def _kind(name: str) -> Kind:
    made: Kind = ROWS[name].load()()
    return made


KINDS = _Kinds()


def collectors() -> dict[str, Collector]:
    """Return by its kind what collects the extras of an episode."""
    made = {name: kind.collector() for name, kind in KINDS.items()}
    return {name: collector for name, collector in made.items() if collector is not None}


def request_fields(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request to an engine. extras: those of a `GenerateRequest`."""
    return {key: field for name, value in extras.items() for key, field in KINDS[name].request(value).items()}


def request_files(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what requests of one call share. requests: the extras of each."""
    found: dict[str, Any] = {}
    for name in {name: None for extras in requests for name in extras}:
        found |= KINDS[name].request_files([extras[name] for extras in requests if name in extras])
    return found


def check_reported(
    message: Mapping[str, Any], extras: Mapping[str, Any], num_read: int, num_sampled: int
) -> None:
    """Raise `ValueError` unless an answer of an engine reports what was asked for, and nothing else. extras: those of
    the request, of `num_read` tokens."""
    for name, kind in KINDS.with_fields(message.__contains__):
        kind.check_reported(message, extras.get(name), num_read, num_sampled)


def large_answers(extras: Mapping[str, Any]) -> bool:
    """Return whether the answer to a request may be as large as any."""
    return any(KINDS[name].large_answers for name in extras)


def reported_extras(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checked answer of an engine reports for one turn."""
    found = {name: kind.reported(message) for name, kind in KINDS.with_fields(message.__contains__)}
    return {name: value for name, value in found.items() if value is not None}


def encode_extras(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return their fields of a trajectory's wire form. Raises `InputError`."""
    if unknown := extras.keys() - KINDS.keys():
        raise InputError(f"extras: unknown kind {min(unknown)!r}; there are {sorted(KINDS)}")
    return {key: field for name, value in extras.items() for key, field in KINDS[name].encode(value).items()}


def decode_extras(fields: Fields, tokens: Tokens) -> dict[str, Any]:
    """Take and check all fields of extras. Raises `InputError`."""
    found = {name: kind.decode(fields, tokens) for name, kind in KINDS.with_fields(fields.has)}
    return {name: value for name, value in found.items() if value is not None}


def hold_files(group: Group) -> bool:
    """Return whether there is something in a group for `check_files`."""
    return any(KINDS[name].holds_files for t in group.trajectories for name in t.extras)


def check_files(group: Group) -> None:
    """Raise `InputError` unless all files of a group can be read; reading a group checks their headers alone."""
    for t in group.trajectories:
        for name, value in t.extras.items():
            KINDS[name].check_files(value, f"task {t.task_id} episode {t.episode_index}")


def token_ids_of(extras: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the ids of all tokens that extras hold, by their place there, such as `next_states.token_ids[0]`."""
    return {
        f"{name}.{place}": ids
        for name, value in extras.items()
        for place, ids in KINDS[name].token_ids(value).items()
    }


COLUMNS = {name: text for row in ROWS.values() for name, text in row.columns.items()}
"""The columns of all kinds among the rows of trajectories, and the type of each, see `Row.columns`."""


def columns_of(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all `COLUMNS` for a trajectory; None where it has no such extra."""
    found = dict.fromkeys(COLUMNS)
    for name, value in extras.items():
        found |= KINDS[name].columns(value)
    return found


def read_by_models(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that a model reads with the tokens."""
    return {name: value for name, value in extras.items() if KINDS[name].read_by_models}


def shown_to_all(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that another model than the one that sampled reads, too; by kind, of one row or of several."""
    return {name: value for name, value in extras.items() if not KINDS[name].of_sampler}


def padded(rows: Sequence[Mapping[str, Any]], width: int) -> dict[str, Any]:
    """Return what models read of the extras of rows of `width` tokens, by kind: those that any of the rows has."""
    kinds = [name for name in KINDS if any(name in one for one in rows) and KINDS[name].read_by_models]
    return {name: KINDS[name].padded([one.get(name) for one in rows], width) for name in kinds}


def keys(extras: Mapping[str, Any], length: int) -> list[np.ndarray]:
    """Return [length,C] int32 each: what must agree, too, where rows share one of their first `length` tokens."""
    found = (KINDS[name].keys(value, length) for name, value in read_by_models(extras).items())
    return [one for one in found if one is not None]


def recorded(extras: Mapping[str, Any]) -> set[str]:
    """Return the kinds of extras that say what the model which sampled did, for others to follow."""
    return {name for name in extras if KINDS[name].of_sampler}
