"""The `algo` section of a recipe: fill it from its preset, check it, without importing torch.

    preset: dapo
    advantage: {name: grpo, eps: 1e-4}
    loss: {name: ppo_clip, eps_high: 0.28}
    corrections: [{name: token_tis, cap: 2.0}]
    aggregation: {name: seq_mean_token_sum_norm, horizon: 1024}
    proximal: {name: recompute}
    kl: {estimator: k3, coef: 0.001, where: loss}
    entropy_coef: 0.0
    entropy_control: {target: 0.2}
    success_nll_coef: 0.0
    lr_scaling: {power: 0.5, base_ess: 1.0}
    value: {coef: 0.5, trunk: shared}
    staleness_control: {enabled: true, low_ess: 0.3}
    denominator: original
    baseline_unit: branches

A part given with the preset's own name (or with none) overrides single parameters; a part with another name
replaces the preset's part. `corrections`, `shaping` and `filters` are lists and are replaced whole.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from asyncrl.algo import signature
from asyncrl.algo.presets import PRESETS
from asyncrl.algo.registry import did_you_mean, short_name
from asyncrl.algo.section import AlgoConfig
from asyncrl.errors import ConfigError

DEFAULTS: dict[str, Any] = AlgoConfig().model_dump()
"""What a recipe without a preset gets, and every key it may set."""

NAMED = {
    "advantage": "advantage",
    "normalize": "normalize",
    "loss": "loss",
    "aggregation": "aggregation",
    "proximal": "proximal",
}
LISTED = {"corrections": "correction", "shaping": "shaping", "filters": "filter"}
MEASURED = ("loss", "correction")
"""Kinds of functions that read `LossInputs.statistics`."""
BY_EPISODE = ("grpo", "dr_grpo", "rloo", "maxrl", "passk", "mc_grpo", "gpg")
"""Advantages of one number a row from the rewards of its group: they may compare episodes in place of branches."""


def default_unit(algo: Mapping[str, Any]) -> str:
    """Return the `baseline_unit` of a recipe whose episodes may branch: "episodes" where its advantage can do so."""
    preset = PRESETS.get(str(algo.get("preset")), {})
    given = algo.get("advantage")
    name = given.get("name") if isinstance(given, Mapping) else None
    name = name or preset.get("advantage", DEFAULTS["advantage"]).get("name")
    return "episodes" if name in BY_EPISODE else "branches"


def resolve_settings(algo: Any) -> dict[str, Any]:
    """Every key of `DEFAULTS`, taken from the recipe, else its preset, else the default; checked.

    `algo` is a mapping or a dataclass. Raises ConfigError naming the key, the value and what is allowed.
    """
    given = _as_dict(algo)
    preset = given.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"algo.preset: unknown preset {preset!r}{did_you_mean(str(preset), PRESETS)}")
    settings = copy.deepcopy(DEFAULTS)
    for layer in (PRESETS[preset] if preset else {}, given):
        for key, value in layer.items():
            settings[key] = _overlay(key, settings.get(key), copy.deepcopy(value))
    settings = _typed(settings)
    _check_parts(settings)
    if "proximal" in given and "proximal" not in needed(settings):
        raise ConfigError(
            f"algo.proximal: {settings['proximal']['name']!r} is read by no part of this objective (the loss is "
            f"{settings['loss']['name']!r}); leave it out. A loss of your own reads it as `inputs.log_ratio`, in its "
            'own body or with @needs("proximal") from asyncrl.algo.needs'
        )
    if settings["baseline_unit"] == "episodes" and settings["advantage"]["name"] not in BY_EPISODE:
        raise ConfigError(
            f"algo.baseline_unit: 'episodes' is for the advantages {', '.join(BY_EPISODE)}, got "
            f"{settings['advantage']['name']!r}"
        )
    return settings


def averages_the_proximal(words: frozenset[str]) -> bool:
    """True when the proximal policy is an average of past ones, and no part reads the policy of the step's start.

    words: what the parts of an objective need.
    """
    return "average" in words and "step_start" not in words


def needed(settings: Mapping[str, Any]) -> frozenset[str]:
    """The words of `needs.KNOWN` that resolved settings need; those of the proximal policy only where one is read."""
    parts = [(kind, settings[key]) for key, kind in NAMED.items() if key != "proximal"]
    parts += [(kind, part) for key, kind in LISTED.items() for part in settings[key]]
    words: set[str] = set()
    for kind, part in parts:
        words |= part_needs(kind, part)
    # A correction weighs the proximal policy against the one that sampled.
    words |= {"proximal"} if settings["corrections"] else set()
    if settings["kl"]["coef"] or settings["kl"]["target"] is not None:
        words.add("reference")
        words |= {"proximal"} if settings["kl"]["where"] == "reward" else set()
        words |= {"behavior"} if settings["kl"]["unbiased"] else set()
    if settings["entropy_coef"] or settings["entropy_control"]["target"] is not None:
        words.add("entropy")
    if settings["success_nll_coef"]:
        words.add("scores")
    if settings["lr_scaling"]["power"]:
        words |= {"behavior", "proximal"}
    if "proximal" in words:
        words |= part_needs("proximal", settings["proximal"])
    return frozenset(words)


def measured_needs(settings: Mapping[str, Any]) -> frozenset[str]:
    """What the loss and corrections with `@step_statistics` need: it is measured on the whole step."""
    found = [part_needs(kind, part) for kind, part in loss_parts(settings)]
    return frozenset[str]().union(*(words for words in found if "step_statistics" in words))


def compared(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return what the trajectories of a group must agree in for the group to carry no gradient.

    The words are those of `needs.COMPARED`. Empty where `always_signal` names a part that may learn from any group.
    """
    if always_signal(settings):
        return frozenset()
    advantage = signature.read("advantage", settings["advantage"]["name"])
    return advantage.zero_where_equal if advantage is not None else frozenset()


def always_signal(settings: Mapping[str, Any]) -> str:
    """Return the key and value by which any group may carry a gradient, whatever its episodes earned; "" without one.

    settings: resolved ones.
    """
    kl, entropy = settings["kl"], settings["entropy_control"]["target"] is not None
    advantage, loss = (signature.read(kind, settings[kind]["name"]) for kind in ("advantage", "loss"))
    parts = {
        f"algo.advantage.name={settings['advantage']['name']!r}": advantage is None
        or not advantage.zero_where_equal,
        f"algo.loss.name={settings['loss']['name']!r}": loss is None or not loss.weighed_by_advantage,
        f"algo.normalize.name={settings['normalize']['name']!r}": settings["normalize"]["name"] != "none",
        "algo.shaping": bool(settings["shaping"]),
        f"algo.kl.coef={kl['coef']:g}": bool(kl["coef"]) or kl["target"] is not None,
        "algo.entropy_coef": bool(settings["entropy_coef"]) or entropy,
        "algo.success_nll_coef": bool(settings["success_nll_coef"]),
        "a critic": "values" in needed(settings),
    }
    return next((name for name, found in parts.items() if found), "")


def loss_parts(settings: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The loss and the corrections of resolved settings, each with its kind."""
    return [("loss", settings["loss"]), *(("correction", part) for part in settings["corrections"])]


def part_needs(kind: str, part: Mapping[str, Any]) -> frozenset[str]:
    """The words of `needs.KNOWN` that one part of resolved settings needs."""
    found = signature.read(kind, part["name"])
    return found.needs(part) if found is not None else frozenset()


def _as_dict(algo: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(algo) and not isinstance(algo, type):
        algo = {k: v for k, v in dataclasses.asdict(algo).items() if v is not None}
    if not isinstance(algo, Mapping):
        raise ConfigError(f"algo: expected a mapping, got {type(algo).__name__}")
    return dict(algo)


def _overlay(key: str, base: Any, value: Any) -> Any:
    if key in NAMED:
        value = _part(NAMED[key], value)
        if isinstance(value, Mapping) and value.get("name", base["name"]) == base["name"]:
            return {**base, **value}
        return value
    if key in LISTED and isinstance(value, list):
        return [_part(LISTED[key], part) for part in value]
    if isinstance(base, dict) and isinstance(value, Mapping):
        return {**base, **value}
    return value


def _part(kind: str, part: Any) -> Any:
    """A part as a mapping with a registered function under its short name; mistakes in it are left for the checks."""
    part = {"name": part} if isinstance(part, str) else part
    if isinstance(part, Mapping) and isinstance(part.get("name"), str):
        return {**part, "name": short_name(kind, part["name"])}
    return part


def _typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as `AlgoConfig` reads them. Raises ConfigError for each that it does not take."""
    try:
        return AlgoConfig.model_validate(settings).model_dump()
    except ValidationError as error:
        from asyncrl.config_problems import explain_problems

        lines = explain_problems(error.errors(), AlgoConfig).values()
        raise ConfigError("\n".join(f"algo.{line}" for line in lines)) from None


def _check_parts(settings: Mapping[str, Any]) -> None:
    for key, kind in NAMED.items():
        _check_part(f"algo.{key}", kind, settings[key])
    for key, kind in LISTED.items():
        for i, part in enumerate(settings[key]):
            _check_part(f"algo.{key}[{i}]", kind, part)
    signature.read("kl", settings["kl"]["estimator"])


def _check_part(where: str, kind: str, part: Any) -> None:
    if not isinstance(part, Mapping) or "name" not in part:
        raise ConfigError(f"{where}: expected a mapping with a name, got {part!r}")
    found = signature.read(kind, _string(f"{where}.name", part["name"]))
    if found is None:
        return
    measured = [mark.decorator for mark in found.marks if mark.decorator.endswith("_statistics")]
    if measured and kind not in MEASURED:
        raise ConfigError(
            f"{where}.name: {part['name']!r} has @{measured[0]}; allowed on: {', '.join(MEASURED)}"
        )
    extra = {"horizon": ast.Name("float")} if kind == "aggregation" else {}
    allowed = {**found.params, **extra}
    for name, value in part.items():
        if name == "name":
            continue
        if name not in allowed:
            raise ConfigError(
                f"{where}.{name}: {part['name']!r} has no such parameter{did_you_mean(name, allowed)}"
            )
        _check_value(f"{where}.{name}", allowed[name], value)
    missing = sorted(found.required - set(part))
    if missing:
        raise ConfigError(f"{where}.{missing[0]}: {part['name']!r} needs this parameter")


def _check_value(where: str, annotation: ast.expr | None, value: Any) -> None:
    if not signature.accepts(annotation, value):
        expected = ast.unparse(annotation) if annotation is not None else ""
        raise ConfigError(f"{where}: got {value!r}, allowed: {expected}")


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected a name, got {value!r}")
    return value
