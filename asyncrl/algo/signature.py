"""Read a function's parameters and marks from its source text, without importing it (and so without torch)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.algo.needs import Mark, words_of
from asyncrl.algo.registry import locate
from asyncrl.errors import ConfigError, did_you_mean
from asyncrl.import_path import Found, top_level_names

STATISTICS = ("step_statistics", "ratio_statistics")
WORDED = ("needs", "zero_where_equal")
"""Decorators whose arguments are words."""
DECORATORS = (
    *WORDED,
    *STATISTICS,
    "group_local",
    "reads_no_rewards",
    "weighed_by_advantage",
    "compares_episodes",
)
READS: dict[str, dict[str, tuple[str, ...]]] = {
    "loss": {
        "log_ratio": ("proximal",),
        "proximal_logp": ("proximal",),
        "mismatch_log_ratio": ("proximal", "behavior"),
        "behavior_log_ratio": ("behavior",),
        "behavior_logp": ("behavior",),
        "reference_logp": ("reference",),
        "teacher_logp": ("teacher",),
        "teacher_kl": ("teacher_logits",),
        "snapshot_logp": ("snapshots",),
    },
    "advantage": {
        "old_logp": ("proximal",),
        "behavior_logp": ("behavior",),
        "reference_logp": ("reference",),
        "values": ("values",),
        "turn_ids": ("turns",),
        "turn_rewards": ("turns",),
        "observation_ids": ("observations",),
        "turn_matches": ("matches",),
        "answer_probability": ("answers",),
        "agents": ("agents",),
        "branches": ("branches",),
        "greedy_rewards": ("greedy",),
        "baselines": ("baselines",),
        "role_baselines": ("role_baselines",),
        "score_norms": ("score_norms",),
        "sum_pi_squared": ("sum_pi_squared",),
    },
}
"""What a function needs that reads a field of its inputs, as `inputs.FIELD` or `inputs.need("FIELD")`, by kind."""
OF_LOSS_INPUTS = ("loss", "correction", "proximal")
"""Kinds of functions that get `LossInputs`."""
READ_BY_NAME = frozenset(
    ("teacher_logp", "teacher_kl", "snapshot_logp", "values", "old_values", "returns", "clip_scale")
)
"""What `LossInputs` has as extras, and not as fields."""
MAX_IMPORTS = 10
"""How many modules a function may be imported through."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function's source says of it."""

    params: dict[str, ast.expr | None]
    """Keyword-only parameters with their annotations."""
    required: frozenset[str]
    """Parameters without a default."""
    defaults: dict[str, Any]
    """Defaults that are literals."""
    marks: tuple[Mark, ...]
    """See `asyncrl.algo.needs`; the one nearest to the function first."""

    def needs(self, part: Mapping[str, Any]) -> frozenset[str]:
        """Return the words of `needs.KNOWN` that hold for a part of a recipe (a name and parameters)."""
        return words_of(self.marks, {**self.defaults, **part})

    @property
    def reads_rewards(self) -> bool:
        """False for a loss that reads neither advantages nor rewards."""
        return all(mark.decorator != "reads_no_rewards" for mark in self.marks)

    @property
    def weighed_by_advantage(self) -> bool:
        """True for a loss without a gradient in rows whose advantages are all 0."""
        return any(mark.decorator == "weighed_by_advantage" for mark in self.marks)

    @property
    def compares_episodes(self) -> bool:
        """True for an advantage that may compare episodes in place of branches."""
        return any(mark.decorator == "compares_episodes" for mark in self.marks)

    @property
    def zero_where_equal(self) -> frozenset[str]:
        """What a group's trajectories agree in where an advantage is 0 throughout it; empty without such a rule."""
        return frozenset(w for mark in self.marks if mark.decorator == "zero_where_equal" for w in mark.words)

    def beyond_group(self, part: Mapping[str, Any]) -> str | None:
        """Return the key for which a part reads beyond a row's group: a parameter or "name"; None if it does not."""
        for mark in self.marks:
            if mark.decorator == "group_local":
                return mark.failing({**self.defaults, **part})
        return "name"


def read(kind: str, name: str) -> Signature | None:
    """Signature of a registered name or import path; None when the module binds the name to no function of its own.

    A function that the module imports from another is looked up there.
    """
    module, function = locate(kind, name)
    found = _lookup(kind, module, function)
    # Each import leads to another file or, in a circle of imports, nowhere.
    for _ in range(MAX_IMPORTS):
        if not isinstance(found, str):
            break
        try:
            module, function = locate(kind, found)
            found = _lookup(kind, module, function)
        except ConfigError:
            # Importable all the same, such as a function of a compiled module.
            return None
    if not isinstance(found, ast.FunctionDef):
        return None
    args = found.args
    pairs = list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    where = f"algo.{kind}: {module}:{function}"
    marks = _marks(where, found)
    if kind in OF_LOSS_INPUTS:
        _check_reads(where, found)
    return Signature(
        params={arg.arg: arg.annotation for arg in args.kwonlyargs},
        required=frozenset(arg.arg for arg, default in pairs if default is None),
        defaults={arg.arg: ast.literal_eval(value) for arg, value in pairs if value and _is_literal(value)},
        marks=(*marks, *_implied(found, READS.get(kind, {}), marks)),
    )


def _lookup(kind: str, module: str, function: str) -> Found:
    definitions = top_level_names(f"algo.{kind}", module)
    if function not in definitions:
        raise ConfigError(
            f"algo.{kind}: module {module} has no function {function!r}{did_you_mean(function, definitions)}"
        )
    return definitions[function]


def _marks(where: str, node: ast.FunctionDef) -> list[Mark]:
    found = []
    for decorator in reversed(node.decorator_list):
        call = decorator if isinstance(decorator, ast.Call) else None
        named = call.func if call is not None else decorator
        name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
        if name not in DECORATORS:
            continue
        words = call.args if call is not None and name in WORDED else []
        when = {str(keyword.arg): keyword.value for keyword in call.keywords} if call is not None else {}
        unreadable = [value for value in (*words, *when.values()) if not _is_literal(value)]
        if unreadable:
            raise ConfigError(
                f"{where}: @{name} must have literal arguments, got {ast.unparse(unreadable[0])}"
            )
        unknown = [key for key in when if key not in {arg.arg for arg in node.args.kwonlyargs}]
        if unknown:
            raise ConfigError(
                f"{where}: @{name} asks for {unknown[0]!r}, which is no parameter of the function"
            )
        conditions = {key: ast.literal_eval(value) for key, value in when.items()}
        implied = (name,) if name in STATISTICS else ()
        given = tuple(ast.literal_eval(word) for word in words)
        found.append(Mark(name, given if name in WORDED else implied, conditions))
    return found


def _check_reads(where: str, node: ast.FunctionDef) -> None:
    """Raise `ConfigError` where a function reads an extra of its inputs as if it were a field."""
    inputs = node.args.args[0].arg if node.args.args else ""
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id == inputs
            and part.attr in READ_BY_NAME
        ):
            raise ConfigError(f"{where}: read {inputs}.need({part.attr!r}) in place of {inputs}.{part.attr}")


def _implied(node: ast.FunctionDef, reads: Mapping[str, tuple[str, ...]], marks: list[Mark]) -> list[Mark]:
    """Return what a function needs because its body reads it, beyond the words of its own marks."""
    if not node.args.args:
        return []
    inputs, declared = node.args.args[0].arg, {word for mark in marks for word in mark.words}
    words: set[str] = set()
    for part in ast.walk(node):
        if not (
            isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == inputs
        ):
            continue
        words |= set(reads.get(part.attr, ()))
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "need":
            named = [argument.value for argument in part.args if isinstance(argument, ast.Constant)]
            of_inputs = isinstance(part.func.value, ast.Name) and part.func.value.id == inputs
            words |= {word for name in named if of_inputs for word in reads.get(str(name), ())}
    found = tuple(sorted(words - declared))
    return [Mark("needs", found)] if found else []


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
