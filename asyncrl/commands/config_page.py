"""The page of all settings, docs/configuration.md: `asyncrl config --markdown` prints it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic.fields import FieldInfo

from asyncrl.algo.settings import CHOICES, DEFAULTS, LEAST, TABLES, VALUES
from asyncrl.config import Config
from asyncrl.config_sections import SELDOM, PolicyConfig, Section, is_section
from asyncrl.extensions.settings import composed

HEAD = """# Configuration

<!-- Generated: asyncrl config --markdown > docs/configuration.md -->

All settings of a run, by section. A recipe sets some of them, in TOML; the others have the defaults below. `base` at
the top of a recipe names settings to build on ([recipes](../recipes/README.md)), and `section.key=value` on the command
line changes one for one run. Unknown keys and wrong values are refused before anything starts. `asyncrl config NAME`
prints what a recipe comes to, and `asyncrl train --resume runs/NAME section.key=value` changes a run that has begun,
except for its `run`, `model`, `env`, `algo`, `lora` and `policies`.

Names that end in `_s` are in seconds; `0` and `""` often mean "choose for me", as said.

First come the settings that people change. Those that most runs leave alone have
[tables of their own](#settings-that-are-seldom-changed) below.
"""
SELDOM_HEAD = """# Settings that are seldom changed
"""
SHOWN_CHARACTERS = 60
"""The characters that are shown of a long default."""
BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))
WORDS = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}
ALGO_TYPES = {"int": "whole number", "float": "number", "bool": "`true`, `false`"}

ALGO = {
    "advantage": "How rewards become advantages ([advantages](algorithms/advantages.md)).",
    "normalize": "How advantages are normalised over the batch ([regularisation](algorithms/regularisation.md)).",
    "loss": "The loss of the policy ([losses](algorithms/losses.md)).",
    "corrections": "Weights and masks for the difference between sampling and training policy "
    "([corrections](algorithms/corrections.md)).",
    "aggregation": "How the losses of tokens become one number ([losses](algorithms/losses.md)).",
    "proximal": "The policy that the clipping is around ([proximal](algorithms/proximal.md)).",
    "kl.estimator": "Estimator of the divergence from the reference policy.",
    "kl.coef": "Weight of the divergence; 0 loads no reference.",
    "kl.where": "Whether it is a term of the loss, or is taken from the rewards.",
    "kl.unbiased": "Multiply the estimate by the ratio of policy and behavior policy; only in the loss.",
    "kl.target": "Divergence that the weight is steered to; left out, the weight is constant.",
    "kl.horizon": "Episodes over which the weight is steered.",
    "entropy_coef": "Weight of the policy's entropy.",
    "entropy_control.target": "Entropy that the weight is steered to; left out, the weight is constant.",
    "entropy_control.step": "What the weight of the entropy changes by in a step.",
    "success_nll_coef": "Weight of the negative log-likelihood of episodes with a reward above 0 "
    "([losses](algorithms/losses.md)).",
    "lr_scaling.power": "Power of the effective sample size that scales the learning rate; 0 for none.",
    "lr_scaling.base_ess": "Effective sample size from which on the rate is not scaled.",
    "value.coef": "Weight of the critic's loss.",
    "value.clip": "Change of a value beyond which its loss is clipped; left out, there is no clip.",
    "value.huber_delta": "Error from which on the critic's loss is linear; left out, it is quadratic.",
    "value.trunk": "A model and optimizer of its own for the critic, or a head on the policy's trunk.",
    "value.learning_rate": "Learning rate of an own trunk; a shared one learns at the policy's.",
    "value.warmup_steps": "First steps in which only the critic learns.",
    "value.steps": "Optimizer steps on each batch of a critic with a trunk of its own; each has new targets.",
    "shaping": "Changes of rewards, such as penalties for length ([regularisation](algorithms/regularisation.md)).",
    "filters": "Which rows leave the loss ([regularisation](algorithms/regularisation.md)).",
    "denominator": "Whether means are over all rows, or those that the filters keep.",
    "baseline_unit": "What a group's baseline compares: all rows, or episodes with the mean of their rows. Where an "
    'agent plays and the advantage gives a row one number, "episodes" is the default.',
    "staleness_control.enabled": "Lower and raise the staleness limit by the effective sample size, up to "
    "`buffer.max_staleness` ([controllers](algorithms/asynchrony-control.md)).",
    "staleness_control.minimum": "Lowest limit.",
    "staleness_control.low_ess": "Effective sample size, as a share, below which the limit falls.",
    "staleness_control.high_ess": "Share above which it rises.",
    "staleness_control.patience": "Steps in a row below or above before the limit moves by one.",
    "sft_phase.every": "Steps between supervised phases on the run's own successes; 0 for none.",
    "sft_phase.steps": "Optimizer steps of a phase.",
    "sft_phase.learning_rate": "Learning rate of a phase.",
    "sft_phase.keep": "Successful trajectories remembered between phases, one a task.",
}
"""Meaning of each key of the objective. Its parts have parameters of their own, which its pages list."""


ALGO_EVERYDAY = {
    *("advantage", "normalize", "loss", "corrections", "aggregation", "proximal", "filters", "shaping"),
    *("kl.coef", "entropy_coef", "value.learning_rate"),
}
"""Keys of the objective that people change; the others are seldom changed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A setting's line in its table."""

    cells: tuple[str, str, str, str]
    seldom: bool = False


@dataclass(frozen=True, slots=True)
class SectionText:
    """A section's name, what it is about, and its settings."""

    name: str
    text: str
    rows: list[Row]


def markdown() -> str:
    """Return the page."""
    sections = list(_sections())
    parts = [HEAD]
    for one in sections:
        if everyday := [row for row in one.rows if not row.seldom]:
            parts.append(_table(f"## {one.name}\n\n{one.text}", everyday))
    parts.append(SELDOM_HEAD)
    for one in sections:
        if seldom := [row for row in one.rows if row.seldom]:
            parts.append(_table(f"## Further settings of `{one.name}`", seldom))
    return "\n".join(parts)


def _sections() -> Iterator[SectionText]:
    for name, field in composed(Config).model_fields.items():
        if name == "algo":
            yield _algo()
        elif name == "policies":
            yield _section("policies.NAME", PolicyConfig, "Any number of them; see [policies](policies.md).")
        else:
            yield _section(name, typing.cast(type[Section], field.annotation))


def _section(name: str, section: type[Section], more: str = "") -> SectionText:
    return SectionText(name, f"{_linked(section.__doc__ or '')} {more}".strip(), list(_rows(name, section)))


def _rows(name: str, section: type[Section]) -> Iterator[Row]:
    """Yield a row for each key, those of tables inside the section included."""
    texts = descriptions(section)
    for key, field in section.model_fields.items():
        if is_section(field.annotation):
            yield from _rows(f"{name}.{key}", field.annotation)
        else:
            yield Row(_cells(f"{name}.{key}", field, texts.get(key, "")), SELDOM in field.metadata)


def descriptions(section: type[Section]) -> dict[str, str]:
    """Return the texts that stand below the fields of a section's class."""
    found: dict[str, str] = {}
    for above in reversed(section.__mro__):
        if issubclass(above, Section) and not above.composed:
            (definition,) = ast.parse(inspect.getsource(above)).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in pairwise(definition.body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    found[field.target.id] = str(text.value.value)
    return found


def _algo() -> SectionText:
    text = (
        "The objective. `algo.preset` names a published method, whose parts the other keys change: a part given by a "
        "name, or by a table with `name` and its parameters, see [algorithms](algorithms/README.md)."
    )
    preset = (
        "`algo.preset`",
        '`"grpo"`',
        "[a preset](algorithms/presets.md)",
        "The published method to start from.",
    )
    rows = [Row(preset)]
    for key, default in DEFAULTS.items():
        inner = (
            {f"{key}.{name}": value for name, value in default.items()}
            if key in (*TABLES,)
            else {key: default}
        )
        for dotted, value in inner.items():
            cells = (f"`algo.{dotted}`", _default(value), _allowed_in_algo(dotted), ALGO[dotted])
            rows.append(Row(cells, dotted not in ALGO_EVERYDAY))
    return SectionText("algo", text, rows)


def _allowed_in_algo(dotted: str) -> str:
    table, _, name = dotted.partition(".")
    if dotted in CHOICES:
        return _choices(CHOICES[dotted])
    annotation = TABLES.get(table, {}).get(name, "")
    if annotation.startswith("Literal"):
        return _choices(ast.literal_eval(annotation.removeprefix("Literal")))
    if annotation:
        least = LEAST.get(table, {}).get(name)
        return ALGO_TYPES[annotation.removesuffix(" | None")] + (
            "" if least is None else f", at least {least:g}"
        )
    if table in VALUES:
        return ALGO_TYPES[VALUES[table]]
    return "name" if table == "kl" else "list" if DEFAULTS[table] == [] else "name or table"


def _choices(values: Iterable[Any]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def _cells(dotted: str, field: FieldInfo, text: str) -> tuple[str, str, str, str]:
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
    return f"`{dotted}`", default, _allowed(field), _linked(text)


def _linked(text: str) -> str:
    """Return a text on one line, with links to the pages that it names."""
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", " ".join(text.split()))


def _default(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value)
    if len(text) > SHOWN_CHARACTERS and isinstance(value, str):
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"`{text}`"


def _allowed(field: FieldInfo) -> str:
    return ", ".join([_kind(field.annotation), *_bounds(field.metadata)])


def _kind(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _choices(inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not type(None))
    if origin is Annotated:
        return ", ".join([_kind(inner[0]), *_bounds(list(inner[1].metadata))])
    if origin is list:
        numbers = typing.get_args(inner[0])[:1] == (int,)
        tables = any(
            isinstance(one, type | types.GenericAlias) and one not in WORDS
            for one in typing.get_args(inner[0])
        )
        return "list of whole numbers" if numbers else f"list of texts{' or tables' if tables else ''}"
    if origin is tuple:
        return f"list of {len(inner)} numbers"
    if origin is dict:
        return "table"
    return "table" if is_section(annotation) else WORDS[annotation]


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for one in metadata:
        for kind, attribute, words in BOUNDS:
            if isinstance(one, kind):
                yield f"{words} {_bound(getattr(one, attribute))}"
        if isinstance(one, MultipleOf):
            yield f"a multiple of {one.multiple_of}"
        if pattern := getattr(one, "pattern", None):
            yield f"`{pattern}`"


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _table(head: str, rows: list[Row]) -> str:
    lines = [head, "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells) + " |" for row in rows]
    return "\n".join(lines) + "\n"
