"""The trajectories of a run, found and filtered by DuckDB in its Parquet files.

What lists show is kept in a table in memory, a few dozen bytes a trajectory; files that a run adds are added to it.
Messages and tokens stay in the files, and so does the search for text.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from asyncrl.errors import InputError
from asyncrl.extensions.monitor.tree import COLUMNS as TREE_COLUMNS
from asyncrl.extensions.monitor.tree import tree_of
from asyncrl.images import data_uri
from asyncrl.run.replays import replay_files

MAX_ROWS = 500
"""The most rows of one page."""
MAX_REPLAYS = 3
"""The most replays of a trajectory that are shown, the newest ones."""
COLUMNS = (
    "step",
    '"group"',
    "task",
    "env",
    "episode_index",
    "worker",
    "version_admitted",
    "status",
    "failure",
    "reward",
    "success",
    "wall_s",
    "num_turns",
    "num_sampled",
    "num_tokens",
    "error",
)
_SORTS = frozenset(name.strip('"') for name in COLUMNS)
_COMPARISONS = {"min": ">=", "max": "<="}
_RANGES = ("step", "reward", "num_turns", "num_sampled", "num_tokens", "version_admitted", "wall_s")
_EQUAL = ("env", "status", "failure", "group", "task", "worker")
FILTERS = frozenset(
    [*_EQUAL, "success", "text", *(f"{bound}_{name}" for name in _RANGES for bound in _COMPARISONS)]
)

_TABLE = """
CREATE TABLE episodes (file VARCHAR, row BIGINT, step INTEGER, "group" VARCHAR, task VARCHAR, env VARCHAR,
    episode_index INTEGER, worker VARCHAR, version_admitted INTEGER, status VARCHAR, failure VARCHAR, reward FLOAT,
    success BOOLEAN, wall_s FLOAT, num_turns BIGINT, num_sampled BIGINT, num_tokens BIGINT, error VARCHAR)
"""
_READ = """
INSERT INTO episodes SELECT filename, file_row_number, step, "group", task, env, episode_index, worker,
    version_admitted, status, failure, reward, success, wall_s, len(turn_start),
    coalesce(list_sum(turn_end) - list_sum(turn_start), 0), coalesce(list_max(turn_end), 0), left(error, 200)
FROM read_parquet(?, filename = true, file_row_number = true)
"""
_MATCHES = """
CREATE OR REPLACE TABLE matches AS SELECT DISTINCT file, row
    FROM (SELECT filename AS file, file_row_number AS row, unnest(messages) AS m
        FROM read_parquet(?, filename = true, file_row_number = true))
    WHERE contains(lower(m.content), ?) OR len(list_filter(m.tool_calls, lambda c: contains(lower(c.arguments), ?))) > 0
"""
"""The trajectories with a text; a list function over all messages of a row would take twice as long."""


class EpisodeTable:
    """The trajectories in a run's `trajectories/`. May be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._run = folder
        self._folder = folder / "trajectories"
        self._lock = threading.Lock()
        # Extensions would come over the network.
        self._database = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 2})
        self._database.execute(_TABLE)
        self._known: dict[str, int] = {}
        """File to its time of modification in nanoseconds."""
        self._matched: tuple[str, dict[str, int]] | None = None
        """The text and the files that the table of matches is of."""

    def page(
        self,
        filters: Mapping[str, str],
        sort: str = "step",
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Return `{"total", "rows"}`: how many trajectories pass the filters, and one page of them.

        filters: by `FILTERS`; texts are compared as they are, `text` is looked for in messages and calls without
        regard to case. Raises `InputError` for a filter, bound or order that there is not.
        """
        if sort not in _SORTS:
            raise InputError(f"sort: must be one of {', '.join(sorted(_SORTS))}, got {sort[:64]!r}")
        if not 1 <= limit <= MAX_ROWS or offset < 0:
            raise InputError(f"limit must be from 1 to {MAX_ROWS}, and offset at least 0")
        with self._lock:
            self._refresh()
            where, values = self._where(filters)
            total = self._rows(f"SELECT count(*) AS total FROM episodes WHERE {where}", values)[0]["total"]
            order = (
                f'"{sort}" {"DESC" if descending else "ASC"} NULLS LAST, step DESC, "group", episode_index'
            )
            columns = ", ".join(COLUMNS)
            rows = self._rows(
                f"SELECT {columns} FROM episodes WHERE {where} ORDER BY {order} LIMIT {limit} OFFSET {offset}",
                values,
            )
        return {"total": total, "rows": rows}

    def choices(self) -> dict[str, list[str]]:
        """Return the values of the columns that have few: environments, statuses and failures."""
        with self._lock:
            self._refresh()
            return {
                name: [
                    row["value"]
                    for row in self._rows(
                        f"SELECT DISTINCT {name} AS value FROM episodes WHERE {name} IS NOT NULL ORDER BY 1 LIMIT 100",
                        [],
                    )
                ]
                for name in ("env", "status", "failure")
            }

    def episode(self, step: int, group: str, index: int) -> dict[str, Any] | None:
        """Return one trajectory with all its columns.

        `siblings`: its group's, as `page` lists them. `replays`: the times that it was played again, the newest first.
        `replay_command`: what a user would type to play it again.
        `image_files`: data URIs by the keys of the images.
        """
        with self._lock:
            self._refresh()
            key = [step, group]
            siblings = self._rows(
                f'SELECT file, row, {", ".join(COLUMNS)} FROM episodes WHERE step = ? AND "group" = ? '
                "ORDER BY episode_index",
                key,
            )
            found = next((row for row in siblings if row["episode_index"] == index), None)
            if found is None:
                return None
            whole = self._rows(
                "SELECT * EXCLUDE (file_row_number) FROM read_parquet(?, file_row_number = true) "
                "WHERE file_row_number = ?",
                [found["file"], found["row"]],
            )[0]
            infos = self._rows(
                "SELECT file_row_number AS row, info FROM read_parquet(?, file_row_number = true) "
                'WHERE "group" = ?',
                [found["file"], group],
            )
            replays = self._replays(step, group, index)
        whole["info"] = _object(whole["info"])
        # Files of earlier versions have none.
        files = whole.pop("image_files", None) or []
        whole["image_files"] = {file["key"]: data_uri(file["data"]) for file in files}
        by_row = {row["row"]: _object(row["info"]) for row in infos}
        whole["siblings"] = [
            {key: value for key, value in row.items() if key not in ("file", "row")}
            | {"info": by_row[row["row"]]}
            for row in siblings
        ]
        whole["replays"] = [row | {"info": _object(row["info"])} for row in replays]
        whole["replay_command"] = shlex.join(
            ["asyncrl", "replay", str(self._run.absolute()), f"{step}/{group}/{index}"]
        )
        return whole

    def _replays(self, step: int, group: str, index: int) -> list[dict[str, Any]]:
        files = replay_files(self._run, step, group, index)[-MAX_REPLAYS:]
        return [
            row
            for path in reversed(files)
            for row in self._rows("SELECT * FROM read_parquet(?) WHERE episode_index = ?", [str(path), index])
        ]

    def tree(self, step: int, group: str) -> list[dict[str, Any]]:
        """Return the rows of a group's tree, see `tree.tree_of`; none for a group that there is not."""
        with self._lock:
            self._refresh()
            files = self._rows(
                'SELECT DISTINCT file FROM episodes WHERE step = ? AND "group" = ?', [step, group]
            )
            if not files:
                return []
            found = self._rows(
                f'SELECT {", ".join(TREE_COLUMNS)} FROM read_parquet(?) WHERE "group" = ? ORDER BY episode_index',
                [files[0]["file"], group],
            )
        return tree_of([row | {"info": _object(row["info"])} for row in found])

    def _refresh(self) -> None:
        """Read the files that are new or were replaced, and forget those that are gone."""
        found = {}
        for path in sorted(self._folder.glob("step-*.parquet")):
            try:
                found[str(path)] = path.stat().st_mtime_ns
            except OSError:
                continue
        changed = [path for path, when in found.items() if self._known.get(path) != when]
        gone = [path for path in self._known if path not in found]
        if self._known and (gone or any(path in self._known for path in changed)):
            self._database.execute("DELETE FROM episodes WHERE list_contains(?, file)", [changed + gone])
        if changed:
            self._database.execute(_READ, [changed])
        self._known = found

    def _where(self, filters: Mapping[str, str]) -> tuple[str, list[Any]]:
        """Return the condition and the values of its parameters."""
        clauses, values = ["true"], list[Any]()
        for name, wanted in filters.items():
            if name not in FILTERS:
                raise InputError(f"no filter {name[:64]!r}; there are {', '.join(sorted(FILTERS))}")
            if name == "text":
                if self._known:
                    self._match(wanted.lower())
                    clauses.append("(file, row) IN (SELECT file, row FROM matches)")
            elif name == "success":
                clauses.append("success = ?")
                values.append(wanted == "true")
            elif name in _EQUAL:
                clauses.append(f'"{name}" = ?')
                values.append(wanted)
            else:
                bound, _, column = name.partition("_")
                clauses.append(f'"{column}" {_COMPARISONS[bound]} ?')
                values.append(_number(name, wanted))
        return " AND ".join(clauses), values

    def _match(self, text: str) -> None:
        """Fill the table of matches, unless it is of this text already: a page and its count need it, and so does the
        next page."""
        if self._matched != (text, self._known):
            self._database.execute(_MATCHES, [list(self._known), text, text])
            self._matched = (text, dict(self._known))

    def _rows(self, query: str, values: list[Any]) -> list[dict[str, Any]]:
        cursor = self._database.execute(query, values)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}: must be a number, got {text[:64]!r}") from None


def _object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
