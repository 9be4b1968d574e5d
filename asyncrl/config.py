"""The configuration of a run: typed, frozen sections, read from a TOML recipe and `key=value` overrides.

Parsed before torch is imported. Unknown keys and wrong values are refused with the key, the value and
what is allowed. Values that follow from others are properties, not keys.
"""

from __future__ import annotations

import difflib
import functools
import glob
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from asyncrl import gpus
from asyncrl.algo.settings import compared, default_unit, resolve_settings
from asyncrl.config_sections import (
    EPISODE_S,
    PATH,
    SCHEDULES,
    SCRIPTED,
    SLOW_TOKENS,
    TRAINED_ON,
    BufferConfig,
    DataConfig,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    ExtensionsConfig,
    LoraConfig,
    ModelConfig,
    OtherModelConfig,
    PlacementConfig,
    PolicyConfig,
    ReferenceConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SftConfig,
    TrainConfig,
    is_section,
)
from asyncrl.errors import ConfigError
from asyncrl.extensions.settings import composed
from asyncrl.extensions.table import rows
from asyncrl.import_path import absolute, search_in
from asyncrl.textfile import read_text, read_toml
from asyncrl.types import MAIN_POLICY

ENGINE_TOKENS, WORKER_TURNS = 20_000, 200
"""Tokens a second that an engine on a GPU samples for many episodes, and turns a second that one rollout worker plays
at contexts of tens of thousands of tokens."""
DEFAULT_OBJECTIVE = {"preset": "grpo"}
"""What `algo` is where a recipe leaves it out."""
BRANCHING = ("threads", *(row.name for row in rows("players") if row.branches))
"""Environments whose episodes give as many rows as an agent starts conversations."""
OF_THE_TINY_MODEL = {"steps": 400, "learning_rate": 2e-3}
"""What 0 stands for in `[sft]` where `model.path` is "sft"."""
LARGEST = 2**63 - 1
"""Of whole numbers: SQLite, torch and the services' messages know none beyond."""
RESTART_S = 120.0
"""How long calls wait for a service that starts again."""
PACKAGED_RECIPES = Path(__file__).parent / "recipes"
PACKAGED_BASES = PACKAGED_RECIPES / "bases"
"""Settings that several recipes share, which a recipe names by `base = "NAME"`."""
LOCAL_RECIPES = Path("recipes")
"""Below the current folder; goes before those of the package."""

TEMPLATE_KEYS = {
    *(("data", key) for key in ("prompt", "system", "answer")),
    *(("sft", key) for key in ("prompt", "completion")),
}
"""Keys of texts that may begin with a brace, as tables do on the command line."""
DATA_KEYS = {
    (*keys, *more)
    for keys in (("data", "train"), ("data", "heldout"), ("sft", "data"))
    for more in ((), ("path",))
}
"""Keys that name a file or folder with rows, or a data set of a hub."""

_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[^}]*\})")
_BEGINNING = re.compile(r"(?:~[A-Za-z0-9_.-]*|\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\})/")
"""How a path begins that the shell would have expanded."""

S = TypeVar("S", bound=Section)


class Config(Section):
    """A whole recipe."""

    run: RunConfig = RunConfig()
    model: ModelConfig
    env: EnvConfig
    data: DataConfig = DataConfig()
    engine: EngineConfig = EngineConfig()
    placement: PlacementConfig = PlacementConfig()
    rollout: RolloutConfig = RolloutConfig()
    buffer: BufferConfig = BufferConfig()
    algo: dict[str, Any] = Field(default_factory=lambda: dict(DEFAULT_OBJECTIVE))
    """The objective; its keys are those of `asyncrl.algo.settings`, which checks them."""
    train: TrainConfig = TrainConfig()
    lora: LoraConfig = LoraConfig()
    reference: ReferenceConfig = ReferenceConfig()
    eval: EvalConfig = EvalConfig()
    sft: SftConfig = SftConfig()
    extensions: ExtensionsConfig = ExtensionsConfig()
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Further policies by name, each with agents of its own to play; see docs/policies.md."""

    @model_validator(mode="before")
    @classmethod
    def _rows_as_tasks(cls, data: Any, info: ValidationInfo) -> Any:
        """Fill in the environment, and its settings, that `[data]` or the name of a known set implies."""
        if not isinstance(data, dict) or (info.context or {}).get("checked"):
            return data
        from asyncrl.rows.settings import with_data

        return with_data(data)

    @model_validator(mode="before")
    @classmethod
    def _tiny_base_model(cls, data: Any) -> Any:
        """Fill in the steps and the learning rate that suit the tiny base model where the recipe leaves them open."""
        model, sft = (data.get(key, {}) for key in ("model", "sft")) if isinstance(data, dict) else ({}, {})
        if not isinstance(model, dict) or not isinstance(sft, dict) or model.get("path") != "sft":
            return data
        left_open = {key: value for key, value in OF_THE_TINY_MODEL.items() if not sft.get(key)}
        return data | {"sft": sft | left_open}

    @model_validator(mode="before")
    @classmethod
    def _limit_of_schedule(cls, data: Any) -> Any:
        """Fill in the staleness limit that `train.schedule` implies where the recipe gives none."""
        if not isinstance(data, dict) or not isinstance(data.get("train", {}), dict):
            return data
        implied = SCHEDULES.get(str(data.get("train", {}).get("schedule", "")))
        buffer = data.get("buffer", {})
        if implied is None or not isinstance(buffer, dict) or "max_staleness" in buffer:
            return data
        return data | {"buffer": buffer | {"max_staleness": implied}}

    @model_validator(mode="before")
    @classmethod
    def _time_of_episodes(cls, data: Any) -> Any:
        """Fill in the time that long episodes, and batches of them, may take where the recipe leaves it open."""
        names = ("engine", "rollout", "buffer")
        if not isinstance(data, dict) or not all(isinstance(data.get(one, {}), dict) for one in names):
            return data
        engine, rollout, buffer = (data.get(one, {}) for one in names)
        tokens, found = engine.get("max_model_len", 0), dict(data)
        if (
            "episode_timeout_s" not in rollout
            and isinstance(tokens, int)
            and tokens > SLOW_TOKENS * EPISODE_S
        ):
            rollout = found["rollout"] = rollout | {"episode_timeout_s": float(tokens // SLOW_TOKENS)}
        longest_s = rollout.get("episode_timeout_s", EPISODE_S)
        if "wait_timeout_s" not in buffer and isinstance(longest_s, int | float) and longest_s > EPISODE_S:
            # A batch may begin when the one before was taken, and wait for an episode that is played again.
            found["buffer"] = buffer | {"wait_timeout_s": 2.0 * longest_s}
        return found

    @model_validator(mode="before")
    @classmethod
    def _workers_of_engines(cls, data: Any) -> Any:
        """Fill in as many rollout workers as play the turns that engines on GPUs answer, one for each at most, where
        the recipe leaves it open."""
        names = ("engine", "rollout")
        if not isinstance(data, dict) or not all(isinstance(data.get(one, {}), dict) for one in names):
            return data
        engine, rollout = (data.get(one, {}) for one in names)
        count, tokens = engine.get("count", 1), rollout.get("max_tokens_per_turn", 256)
        if "workers" in rollout or not all(isinstance(one, int) and one > 0 for one in (count, tokens)):
            return data
        workers = min(count, math.ceil(count * ENGINE_TOKENS / tokens / WORKER_TURNS))
        if workers == 1 or not gpus.found_gpus():
            return data
        return data | {"rollout": rollout | {"workers": workers}}

    @model_validator(mode="before")
    @classmethod
    def _type_of_machine(cls, data: Any) -> Any:
        """Fill in the type of the weights that suits this machine where the recipe leaves it open."""
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict) or model.get("dtype", "auto") != "auto":
            return data
        return data | {"model": model | {"dtype": "bfloat16" if gpus.found_gpus() else "float32"}}

    @model_validator(mode="before")
    @classmethod
    def _unit_of_agents(cls, data: Any) -> Any:
        """Compare episodes, and not their branches, where an episode has several and the recipe leaves it open."""
        env = data.get("env") if isinstance(data, dict) else None
        algo = data.get("algo", DEFAULT_OBJECTIVE) if isinstance(data, dict) else None
        if not isinstance(env, dict) or env.get("name") not in BRANCHING or not isinstance(algo, dict):
            return data
        return (
            data
            if "baseline_unit" in algo
            else data | {"algo": {**algo, "baseline_unit": default_unit(algo)}}
        )

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Config:
        if (info.context or {}).get("checked"):
            return self
        from asyncrl.config_checks import section_problems
        from asyncrl.conflicts.between import policy_problems

        if problem := next(section_problems(self), ""):
            raise ValueError(problem)
        for name in self.policies:
            try:
                self.policy(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if problem := next(policy_problems(self), ""):
            raise ValueError(problem)
        return self

    def section(self, kind: type[S]) -> S:
        """Return the section of a class, or the one to which an extension adds the keys of that class."""
        for _, values in self:
            if isinstance(values, kind):
                return values
        raise LookupError(f"{kind.__name__} is no part of a run's configuration")

    @property
    def other_models(self) -> dict[str, OtherModelConfig]:
        """The sections of other models than the policy, by their names."""
        return {name: one for name, one in self if isinstance(one, OtherModelConfig)}

    @property
    def policy_names(self) -> tuple[str, ...]:
        """The policies of the run: that which plays the agents no other one names, and those of `policies`."""
        return (MAIN_POLICY, *self.policies)

    def policy(self, name: str) -> Config:
        """Return the configuration of a policy: this one with what `policies.NAME` changes. Raises `ConfigError`.

        Keys of its sections replace this configuration's; `algo` is replaced as a whole. `MAIN_POLICY` changes nothing.
        """
        if name == MAIN_POLICY:
            return self
        data = self.model_dump(mode="json") | {"policies": {}}
        for section, values in self:
            if isinstance(values, Section):
                data[section] |= values.of_further_policies
        for section, values in self.policies[name].implied.items():
            data[section] |= values
        for section, changes in self.policies[name].changes().items():
            data[section] = changes if section == "algo" else data[section] | changes
        return parse_config(data, f"policies.{name}", strict=False)

    def shares_engines(self, name: str) -> bool:
        """True when a further policy is served by the main policy's engines: both train adapters of one base model,
        and it was given no engines of its own."""
        policy = self.policy(name)
        adapters = self.lora.rank > 0 and policy.lora.rank > 0
        return adapters and not self.policies[name].engine and policy.model == self.model

    @property
    def co_served_policies(self) -> dict[str, LoraConfig]:
        """What the further policies train that the main policy's engines serve, too."""
        return {name: self.policy(name).lora for name in self.policies if self.shares_engines(name)}

    @property
    def outage_timeout_s(self) -> float:
        """How long requests and new weights wait while no engine answers: until the last of them was found silent and
        has been started again."""
        return self.run.silence_timeout_s + self.run.start_timeout_s

    @property
    def buffer_outage_s(self) -> float:
        """How long calls wait for a buffer that does not answer: until it has started again, maybe elsewhere."""
        return RESTART_S + (self.run.node_timeout_s if self.buffer.may_move else 0.0)

    @property
    def publishes_in_background(self) -> bool:
        """True when the trainer takes and trains the next batch while a version is brought to the engines: where that
        batch may hold groups of the version before, and the memory for training is the trainer's own."""
        overlaps = self.train.schedule in ("asynchronous", "partial") and self.buffer.max_staleness > 0
        return overlaps and self.placement.sleep is not True

    @property
    def rank_timeout_s(self) -> float:
        """How long a trainer's rank may go without progress, and its collectives without the other ranks: rank 0 may be
        publishing, while no engine answers."""
        return self.train.stall_timeout_s + self.outage_timeout_s

    @property
    def evaluation_timeout_s(self) -> float:
        """How long an evaluation may take: to start its engine and to play all tasks, as many at once as it decodes."""
        rounds = -(-self.eval.tasks // self.engine.max_num_seqs)
        return self.run.start_timeout_s + rounds * self.rollout.episode_timeout_s

    @property
    def max_tokens(self) -> int:
        """Tokens a trajectory may have."""
        return self.engine.max_model_len

    @property
    def slots(self) -> int:
        """Groups admitted and not yet trained at any time, see `asyncrl.buffer.staleness.capacity`."""
        groups, beyond = self.buffer.groups_per_step, self.buffer.over_provision
        most = self.buffer.max_staleness * groups
        return groups + (min(most, beyond) if isinstance(beyond, int) else most)

    @property
    def groups_in_flight(self) -> int:
        """Groups one worker runs at once."""
        if self.rollout.groups_in_flight or "rollout" not in self.numbers:
            return self.rollout.groups_in_flight or max(1, self.slots // self.rollout.workers)
        # Rounded up: all workers that there may be can play all groups that are admitted.
        return -(-self.slots // self.most("rollout"))

    @property
    def numbers(self) -> dict[str, tuple[int, int]]:
        """Least and most processes by role, of those whose number changes while the run goes on."""
        return {role: n for _, one in self if isinstance(one, Section) for role, n in one.numbers.items()}

    def most(self, role: str) -> int:
        """Return how many processes of "rollout", "env" or "engine" the run may have, at the most."""
        services = 1 if self.env.services == "auto" else self.env.services
        start = {"rollout": self.rollout.workers, "env": services, "engine": self.engine.count}
        return self.numbers.get(role, (0, start[role]))[1]

    @property
    def no_signal(self) -> frozenset[str]:
        """What the episodes of a group agree in that the buffer drops for want of a signal; empty where it drops none.

        Raises `ConfigError` for an objective that cannot be."""
        if self.buffer.drop_no_signal is False:
            return frozenset()
        return compared(resolve_settings(self.algo))

    @property
    def deterministic(self) -> bool:
        """True when sampling is seeded per turn: on-policy runs repeat."""
        return self.buffer.max_staleness == 0


def load_config(recipe: str | Path, overrides: Sequence[str] = (), checked: bool = False) -> Config:
    """Read a recipe, apply `section.key=value` overrides, and have its import paths found.

    `recipe` is a TOML file, a folder with a `recipe.toml`, a name (`known_recipes`), or the `config.json` of a run.
    A recipe with a `base` changes the settings of that file. Files that either names are taken relative to its own
    folder, those of overrides to the current one. checked: of a run whose launcher has found that the sections fit
    together, which is not checked again. Raises `ConfigError` naming the key, the value and what is allowed.
    """
    path = find_recipe(recipe)
    ran = path.suffix == ".json"
    data = _read(path)
    from_base: dict[tuple[str, ...], Path] = {}
    if not ran:
        data = with_files_in(path.absolute().parent, data)
        if "base" in data:
            data, from_base = _on_base(data, path)
    for override in overrides:
        if override.startswith("base="):
            raise ConfigError(f"override {override!r}: a base can be named only in a recipe's file")
        from_base.pop(apply_override(data, override)[:2], None)
    run = data.get("run", {})
    if not ran and isinstance(run, dict) and isinstance(run.get("python_path", []), list):
        folders = [*run.get("python_path", []), str(Path.cwd())]
        data["run"] = run | {"python_path": list(dict.fromkeys(folders))}
    config = parse_config(data, str(path), not ran, from_base, checked)
    search_in(config.run.python_path)
    return config


def parse_config(
    data: dict[str, Any],
    source: str = "configuration",
    strict: bool = True,
    others: Mapping[tuple[str, ...], Path] = MappingProxyType({}),
    checked: bool = False,
) -> Config:
    """Build a `Config` from nested dictionaries; JSON ones need `strict` off. Raises `ConfigError`.

    others: the files that sections and keys are from which are not from `source`. checked: see `load_config`.
    """
    if wrong := [f"  {key}: must be {expected}, got {value}" for key, value, expected in no_numbers(data)]:
        raise ConfigError(f"{source}: {len(wrong)} problem(s):\n" + "\n".join(wrong))
    try:
        return composed(Config).model_validate(data, strict=strict, context={"checked": checked})
    except ValidationError as error:
        from asyncrl.config_problems import explain_problems

        lines = [
            f"  {line}{_whose(place, others)}"
            for place, line in explain_problems(error.errors(), composed(Config)).items()
        ]
        raise ConfigError(f"{source}: {len(lines)} problem(s):\n" + "\n".join(lines)) from None


def no_numbers(value: Any, key: str = "") -> Iterator[tuple[str, float, str]]:
    """Yield the keys of settings, those of environments and algorithms included, that are no number to compute with,
    each with its value and what is expected."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value, "a finite number"
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield key, value, f"a whole number of 64 bits, at most {LARGEST}"
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from no_numbers(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from no_numbers(one, f"{key}.{number}")


def override_config(config: Config, overrides: Sequence[str]) -> Config:
    """Apply overrides to a run that has begun. Raises `ConfigError`, also for what makes it another run."""
    data = config.model_dump(mode="json")
    for override in overrides:
        section = override.partition(".")[0]
        if section in _fixed_sections():
            raise ConfigError(
                f"override {override!r}: {section} cannot change while a run goes on; start another run"
            )
        apply_override(data, override)
    return parse_config(data, "the run's configuration with overrides", strict=False)


@functools.cache
def _fixed_sections() -> frozenset[str]:
    """Return what makes a run the run it is; the rest may change when it is resumed."""
    kinds = {name: field.annotation for name, field in composed(Config).model_fields.items()}
    fixed = {name for name, kind in kinds.items() if is_section(kind) and kind.fixed}
    return frozenset({"algo", "policies"} | fixed)


@functools.cache
def _model_keys() -> Mapping[tuple[str, ...], Callable[[str], bool]]:
    """Return the keys that name a folder with a model or one of a hub, and what says that a value is another name."""
    fields = composed(Config).model_fields
    others = {name: one.annotation for name, one in fields.items() if is_section(one.annotation)}
    found: dict[tuple[str, ...], Callable[[str], bool]] = {
        (name, "path"): one.is_name for name, one in others.items() if issubclass(one, OtherModelConfig)
    }
    return {("model", "path"): lambda value: value == "sft", **found}


@functools.cache
def _path_keys() -> frozenset[tuple[str, ...]]:
    """Return the keys that name a file or folder, whatever it begins with."""
    return frozenset(_model_keys().keys() | DATA_KEYS | set(_marked(composed(Config))))


def _marked(section: type[Section]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        if is_section(field.annotation):
            yield from ((name, *keys) for keys in _marked(field.annotation))
        elif PATH in field.metadata:
            yield (name,)


def find_recipe(recipe: str | Path) -> Path:
    """Return the recipe file that `recipe` names, a local one before one of the package.

    Raises `ConfigError` listing what was tried and what there is.
    """
    path = Path(recipe)
    folders = [path, LOCAL_RECIPES / path, PACKAGED_RECIPES / path]
    tried = [path, *(folder / "recipe.toml" for folder in folders)]
    for candidate in tried:
        if candidate.is_file():
            return candidate
    if path.suffix == ".toml":
        raise ConfigError(
            f"there is no file {str(recipe)!r}; `asyncrl recipes` lists the recipes of the package"
        )
    known = known_recipes()
    file = path.with_name(f"{path.name}.toml")
    # The recipe of an environment is what somebody looks for who gives only the environment's name.
    close = [str(file)] if file.is_file() else [name for name in known if name == f"{recipe}_grpo"]
    close = close or difflib.get_close_matches(str(recipe), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise ConfigError(
        f"no recipe {str(recipe)!r}{hint} Recipes: {', '.join(known)}; or give a TOML file, or a folder with "
        f"recipe.toml (tried {', '.join(map(str, tried))})"
    )


def known_recipes() -> dict[str, Path]:
    """Return the recipe files that a name alone finds, by name."""
    found: dict[str, Path] = {}
    for folder in (LOCAL_RECIPES, PACKAGED_RECIPES):
        for path in folder.glob("*/recipe.toml"):
            found.setdefault(path.parent.name, path)
    return dict(sorted(found.items()))


def _on_base(recipe: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], Path]]:
    """Return a recipe's settings with those of its base where it has none, and the base's file by each key from it.

    Keys of sections replace those of the base; `algo`, and values that are tables, are replaced as a whole. Raises
    `ConfigError` for a base that is not there.
    """
    file = _find_base(recipe.pop("base"), path)
    settings = with_files_in(file.absolute().parent, _read(file))
    if "base" in settings:
        raise ConfigError(f"{file}: base: a base has no base of its own, got {settings['base']!r}")
    merged = dict(recipe)
    taken: dict[tuple[str, ...], Path] = {}
    for section, values in settings.items():
        own = recipe.get(section, {})
        if section != "algo" and isinstance(values, dict) and isinstance(own, dict):
            merged[section] = values | own
            taken |= {(section, key): file for key in values if key not in own}
        elif section not in recipe:
            merged[section] = values
            taken[(section,)] = file
    return merged, taken


def _find_base(name: Any, recipe: Path) -> Path:
    """Return the file of a base: one of the package by its name, or a TOML file relative to the recipe's folder."""
    packaged = {path.stem: path for path in sorted(PACKAGED_BASES.glob("*.toml"))}
    if isinstance(name, str):
        file = packaged.get(name, recipe.absolute().parent / name)
        if file.suffix == ".toml" and file.is_file():
            return file
    close = difflib.get_close_matches(str(name), packaged, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"{recipe}: base: there is no base {name!r}; {hint}allowed: {', '.join(packaged)}, or a TOML file beside the "
        "recipe"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(read_text(path)) if path.suffix == ".json" else read_toml(path)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def with_files_in(folder: Path, value: Any, keys: tuple[str, ...] = ()) -> Any:
    """Return settings with the files they name made absolute, relative ones in `folder`.

    Those are `./x` and `../x`, `file.py:name`, `env.task_file`, `run.python_path`, and models and rows that are there.
    What else `run` names is in the current folder. `~` and variables of the environment are expanded at the beginning
    of such values, and anywhere in those that name a file or folder (`config_sections.PATH`). Raises `ConfigError` for
    a variable that is not set.
    """
    if isinstance(value, dict):
        return {
            absolute(str(key), folder): with_files_in(folder, one, (*keys, str(key)))
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [with_files_in(folder, one, keys) for one in value]
    if not isinstance(value, str) or not value:
        return value
    keys = keys[2:] if keys[:1] == ("policies",) else keys
    if keys in _path_keys():
        value = expanded(".".join(keys), value)
    if keys[:1] == ("run",) and keys != ("run", "python_path"):
        return value
    beginning = os.path.expandvars(os.path.expanduser(value)) if _BEGINNING.match(value) else value
    there = os.path.abspath(folder / beginning)
    named = (keys in DATA_KEYS and value not in (SCRIPTED, TRAINED_ON)) or (
        keys in _model_keys() and not _model_keys()[keys](value)
    )
    in_folder = keys in {("env", "task_file"), ("run", "python_path")} or value.startswith(("./", "../"))
    if in_folder or (beginning != value and os.path.isabs(beginning)):
        return there
    # A pattern for several files is one of rows only.
    is_there = os.path.exists(there) or (keys in DATA_KEYS and glob.has_magic(value))
    return there if named and is_there else absolute(value, folder)


def expanded(key: str, path: str) -> str:
    """Return a path with `~` and variables of the environment expanded. Raises `ConfigError` for unknown ones."""
    found = os.path.expanduser(os.path.expandvars(path))
    if missing := _VARIABLE.search(found):
        raise ConfigError(f"{key}: the variable {missing[0]} is not set, got {path!r}")
    if found.startswith("~"):
        raise ConfigError(f"{key}: there is no user {found.partition('/')[0][1:]!r}, got {path!r}")
    return found


def apply_override(data: dict[str, Any], override: str) -> tuple[str, ...]:
    """Set `section.key` of `data` to the TOML or JSON value of `section.key=value`; return the key's parts.

    Raises `ConfigError`.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(
            f"override {override!r}: must look like section.key=value, for example train.num_steps=20"
        )
    *parents, last = key.strip().split(".")
    section = data
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            raise ConfigError(f"override {override!r}: {parent!r} is a value, not a section")
    keys = (*parents, last)
    template = keys in TEMPLATE_KEYS and text.startswith("{")
    value = text if template else parse_value(f"override {override!r}", text)
    section[last] = with_files_in(Path.cwd(), value, keys)
    return keys


def parse_value(where: str, text: str) -> Any:
    """Read a value; a bare word is a string. Raises `ConfigError` for a broken table or list."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        wrong = error
    try:
        return json.loads(text)
    except ValueError:
        if text.lstrip().startswith(("{", "[")):
            raise ConfigError(
                f'{where}: neither TOML ({{a = 1}}) nor JSON ({{"a": 1}}); quote all of it for the '
                f"shell: {wrong}"
            ) from wrong
        return text


def _whose(place: tuple[Any, ...], others: Mapping[tuple[str, ...], Path]) -> str:
    """Say which other file a problem's key is from; "" where it is from the recipe's own."""
    file = others.get(place[:2]) or others.get(place[:1])
    return f" (from {file})" if file else ""
