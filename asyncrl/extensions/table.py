"""The capabilities that come along, and what each adds to a run: the `extension.toml` of every folder beside this file.

    [[trainer_callbacks]]
    path = "trainer:exchanging"      what is loaded, relative to the folder
    place = 40                       the lower, the earlier it is called
    asked = ["config.x"]             keys that must all be true of what the seam asks with
    absent = ["arguments.x"]         keys that must all be false
    when = { "config.x" = "y" }      keys that must all have these values
    unless = { "config.x" = 1 }      keys none of which may have these values

The name of a table is that of a seam. Each seam reads its rows here, and says with what they are asked. Nothing of a
folder is imported before a run asks for it: these files are data. Torch-free.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.import_path import load_object

FOLDER = Path(__file__).parent
FILE = "extension.toml"
SEAMS = frozenset(
    {
        "settings",
        "task_plans",
        "task_shares",
        "checks",
        "model_checks",
        "model_kinds",
        "row_contents",
        "run_monitors",
        "run_rules",
        "conflicts",
        "trainer_callbacks",
        "sampled_checks",
        "checkpoint_copies",
        "forward_changes",
        "engine_parts",
        "optimizers",
        "step_parts",
        "trunk_heads",
        "teachers",
        "group_checks",
        "strategies",
        "players",
        "episode_ends",
        "evaluation_generators",
        "training_generators",
        "group_rewards",
        "lease_hooks",
        "ledger_hooks",
        "buffer_routes",
        "ledger_followers",
        "buffer_places",
        "service_roles",
        "cluster_kinds",
        "machine_checks",
        "cluster_requests",
        "start_checks",
        "token_extras",
        "past_versions",
        "engine_hooks",
        "engine_processes",
        "policy_loaders",
        "weight_conversions",
        "weight_carriers",
        "weight_forms",
        "engine_additions",
        "environments",
        "sandboxes",
        "trackers",
        "algo_parts",
        "presets",
        "commands",
        "start_models",
        "local_models",
        "data_formats",
        "evaluation_kinds",
        "evaluators",
        "plans",
        "rewards",
        "answer_readers",
        "turn_formats",
    }
)
"""The tables that a file may have. CONTRIBUTING.md says what each is for, and by which protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one extension adds at one seam."""

    extension: str = ""
    """The folder; empty for what belongs to every run."""
    path: str
    """The import path of what is loaded."""
    name: str = ""
    """Its name there, the extension's where it has none of its own; the section's (settings), the kind's (weight
    forms)."""
    place: int = 50
    prepare: str = ""
    """The import path of what is called before any rank loads a model (trainer callbacks)."""
    tasks: str = ""
    """The import path of the class that lists the tasks of its `env.name` (players)."""
    branches: bool = False
    """Whether an episode may come back as several rows, of as many conversations (players)."""
    of_programs: bool = False
    """Whether programs do the tasks of another environment: its settings are then `harness`, which names the program,
    and `tasks` and `task_config` (players)."""
    join: str = ""
    """The import path of what starts it where it joins a run, and is a process that is no member of the run then
    (service roles)."""
    auto: bool = False
    """Whether it isolates on this machine without an account or a daemon, so that `auto` may choose it (sandboxes)."""
    of_others: bool = False
    """Whether code of others runs beside it, which must not find its token in the variables (service roles)."""
    asked: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    unless: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which roles may call which of its routes, besides the launcher (buffer routes)."""
    fields: tuple[str, ...] = ()
    """Its fields of a trajectory's wire form (token extras)."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Its columns among the rows of trajectories, and of each the type: such as `int32`, or `[int32]` for a list (token
    extras)."""
    provides: tuple[str, ...] = ()
    """What trajectories have by it, as an environment's steps may (`Env.provides`; episode ends, rewards of
    groups, players)."""
    unencrypted: str = ""
    """What its bytes go over where others on the network could read them (weight carriers)."""
    kind: str = ""
    """Which kind of part of an objective it is, see `asyncrl.algo.registry` (parts of objectives)."""
    argument: str = ""
    """What follows its name after a colon, for errors; its class is given that (rewards)."""
    help: str = ""
    """What help says that it is (service roles, cluster kinds), whose tasks it has (evaluators), or on what
    checkpoints are evaluated (evaluation kinds)."""
    kinds: str = ""
    """The seam whose rows are the words that may follow it; the first is meant where none does (commands)."""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Its options on the command line, and in what each differs from an option of that name of the core: `metavar`,
    `help`, `default`, `action` (service roles, evaluators, evaluation kinds)."""
    takes: tuple[str, ...] = ()
    """Options of `asyncrl eval` that it follows, of those that not all evaluators do (evaluators)."""
    with_trainer: bool = False
    """Whether a run that asks for it has one for each trainer, which is told its address (service roles)."""
    with_workers: bool = False
    """Whether a run or an evaluation that asks for it has one for its rollout workers, which are told its address
    (service roles)."""
    of_start_model: bool = False
    """Whether a run tells it which model it starts from; an evaluation has none (service roles with workers)."""
    keeps_versions: bool = False
    """Whether it reads, from the folder of published weights, every version that tokens may carry (service roles)."""
    of_a_run: bool = False
    """Whether it must be given a run's own token (service roles)."""
    loads_models: bool = False
    """Whether it loads models, or starts what does, without a launcher that has looked at the installation (service
    roles)."""
    of_episodes: bool = False
    """Whether its section decides what comes of an episode, so that an evaluation that goes on must have the same
    (settings)."""
    own_engine: bool = False
    """Whether an engine keeps something by it for the trainer of one run, and can serve no other (engine additions)."""

    def wanted(self, given: Any) -> bool:
        """Return whether a run asks for it. given: what the seam asks with.

        Raises `AttributeError` for a key that is not there.
        """
        return (
            all(value_at(given, key) for key in self.asked)
            and not any(value_at(given, key) for key in self.absent)
            and all(value_at(given, key) == value for key, value in self.when.items())
            and not any(value_at(given, key) == value for key, value in self.unless.items())
        )

    def load(self) -> Any:
        """Return what its import path names. Raises `ConfigError`."""
        return load_object(f"extensions.{self.extension}" if self.extension else self.path, self.path)


KEYS = {one.name for one in fields(Row)} - {"extension"}
"""What a table of a file may have."""


def value_at(given: Any, key: str) -> Any:
    """Return what a dotted key leads to: through attributes, keys of mappings, and whether a set has a name."""
    for name in key.split("."):
        if isinstance(given, Mapping):
            given = given.get(name)
        elif isinstance(given, Set):
            given = name in given
        else:
            given = getattr(given, name)
    return given


def merged(seam: str, core: Iterable[Row]) -> tuple[Row, ...]:
    """Return a seam's own rows and those of the extensions, in the order in which they are called."""
    return tuple(sorted((*core, *rows(seam)), key=lambda row: row.place))


def by_name(seam: str) -> dict[str, Row]:
    """Return what the extensions add at a seam whose rows a recipe chooses by name. Raises `ConfigError`."""
    return {row.name: row for row in rows(seam)}


@functools.cache
def rows(seam: str) -> tuple[Row, ...]:
    """Return what the extensions add at a seam, in the order in which it is called. Raises `ConfigError`."""
    assert seam in SEAMS, seam
    return tuple(sorted(_read(seam), key=lambda row: (row.place, row.extension)))


def _read(seam: str) -> Iterator[Row]:
    for folder in sorted(FOLDER.glob(f"*/{FILE}")):
        for table in _tables(folder).get(seam, ()):
            if unknown := table.keys() - KEYS:
                raise ConfigError(
                    f"{folder}: {seam} has an unknown key {min(unknown)!r}; there are {sorted(KEYS)}"
                )
            yield _row(folder.parent.name, dict(table))


@functools.cache
def _tables(file: Path) -> Mapping[str, Any]:
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    if unknown := tables.keys() - SEAMS - {"title", "page"}:
        raise ConfigError(f"{file}: unknown key {min(unknown)!r}; there are title, page and {sorted(SEAMS)}")
    return tables


def _row(extension: str, table: dict[str, Any]) -> Row:
    for key in {"path", "prepare", "tasks", "join"} & table.keys():
        table[key] = f"{__package__}.{extension}.{table[key]}"
    for key in {"asked", "absent", "fields", "provides", "takes"} & table.keys():
        table[key] = tuple(table[key])
    if "roles" in table:
        table["roles"] = {call: tuple(roles) for call, roles in table["roles"].items()}
    return Row(extension=extension, name=table.pop("name", extension), **table)
