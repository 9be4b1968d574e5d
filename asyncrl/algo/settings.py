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
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from asyncrl.algo import signature
from asyncrl.algo.presets import find_preset, known_presets
from asyncrl.algo.registry import parts, short_name
from asyncrl.config_sections import Section, Seldom
from asyncrl.errors import ConfigError, did_you_mean
from asyncrl.import_path import accepts

Part = str | dict[str, Any]


class KlConfig(Section):
    """The divergence from the reference policy."""

    estimator: Seldom[str] = "k3"
    """Estimator of the divergence from the reference policy (docs/algorithms/regularisation.md)."""
    coef: float = 0.0
    """Weight of the divergence; 0 loads no reference."""
    where: Seldom[Literal["loss", "reward"]] = "loss"
    """Whether it is a term of the loss, or is taken from the rewards."""
    unbiased: Seldom[bool] = False
    """Multiply the estimate by the ratio of policy and behavior policy; only in the loss."""
    target: Seldom[float | None] = None
    """Divergence that the weight is steered to; left out, the weight is constant."""
    horizon: Seldom[int] = 10000
    """Episodes over which the weight is steered."""

    @field_validator("unbiased")
    @classmethod
    def _only_a_loss_is_weighed(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("where") == "reward":
            raise ValueError("weighs the KL's gradient, which one in the reward (algo.kl.where) has not")
        return value


class EntropyControlConfig(Section):
    """How the weight of the entropy is steered."""

    target: Seldom[float | None] = None
    """Entropy that the weight is steered to; left out, the weight is constant."""
    step: Seldom[float] = Field(0.005, ge=0)
    """What the weight of the entropy changes by in a step."""


class LrScalingConfig(Section):
    """How the learning rate follows the effective sample size."""

    power: Seldom[float] = 0.0
    """Power of the effective sample size that scales the learning rate; 0 for none."""
    base_ess: Seldom[float] = 1.0
    """Effective sample size from which on the rate is not scaled."""


class ValueConfig(Section):
    """The critic."""

    coef: Seldom[float] = 0.5
    """Weight of the critic's loss."""
    clip: Seldom[float | None] = 0.2
    """Change of a value beyond which its loss is clipped; left out, there is no clip."""
    huber_delta: Seldom[float | None] = None
    """Error from which on the critic's loss is linear; left out, it is quadratic."""
    trunk: Seldom[Literal["own", "shared"]] = "own"
    """A model and optimizer of its own for the critic, or a head on the policy's trunk."""
    learning_rate: float = Field(1e-5, ge=0)
    """Learning rate of an own trunk; a shared one learns at the policy's."""
    warmup_steps: Seldom[int] = Field(0, ge=0)
    """First steps in which only the critic learns."""
    steps: Seldom[int] = Field(1, ge=1)
    """Optimizer steps on each batch of a critic with a trunk of its own; each has new targets."""


class StalenessControlConfig(Section):
    """A staleness limit that follows the effective sample size."""

    enabled: Seldom[bool] = False
    """Lower and raise the staleness limit by the effective sample size, up to `buffer.max_staleness`
    (docs/algorithms/asynchrony-control.md)."""
    minimum: Seldom[int] = Field(0, ge=0)
    """Lowest limit."""
    low_ess: Seldom[float] = Field(0.3, ge=0)
    """Effective sample size, as a share, below which the limit falls."""
    high_ess: Seldom[float] = Field(0.7, ge=0)
    """Share above which it rises."""
    patience: Seldom[int] = Field(5, ge=1)
    """Steps in a row below or above before the limit moves by one."""


class AlgoConfig(Section):
    """The objective. `algo.preset` names a published method, whose parts the other keys change: a part given by a name,
    or by a table with `name` and its parameters, see [algorithms](algorithms/README.md)."""

    advantage: Part = Field(default_factory=lambda: {"name": "grpo"})
    """How rewards become advantages (docs/algorithms/advantages.md)."""
    normalize: Part = Field(default_factory=lambda: {"name": "none"})
    """How advantages are normalised over the batch (docs/algorithms/regularisation.md)."""
    loss: Part = Field(default_factory=lambda: {"name": "ppo_clip"})
    """The loss of the policy (docs/algorithms/losses.md)."""
    corrections: list[Part] = Field(default_factory=list)
    """Weights and masks for the difference between sampling and training policy (docs/algorithms/corrections.md)."""
    aggregation: Part = Field(default_factory=lambda: {"name": "token_mean"})
    """How the losses of tokens become one number (docs/algorithms/losses.md)."""
    proximal: Part = Field(default_factory=lambda: {"name": "recompute"})
    """The policy that the clipping is around (docs/algorithms/proximal.md)."""
    kl: KlConfig = KlConfig()
    entropy_coef: float = 0.0
    """Weight of the policy's entropy."""
    entropy_control: EntropyControlConfig = EntropyControlConfig()
    success_nll_coef: Seldom[float] = Field(0.0, ge=0)
    """Weight of the negative log-likelihood of episodes with a reward above 0 (docs/algorithms/losses.md). Below 0,
    successes would be unlearnt without bound."""
    lr_scaling: LrScalingConfig = LrScalingConfig()
    value: ValueConfig = ValueConfig()
    shaping: list[Part] = Field(default_factory=list)
    """Changes of rewards, such as penalties for length (docs/algorithms/regularisation.md)."""
    filters: list[Part] = Field(default_factory=list)
    """Which rows leave the loss (docs/algorithms/regularisation.md)."""
    denominator: Seldom[Literal["original", "kept"]] = "original"
    """Whether means are over all rows, or those that the filters keep."""
    baseline_unit: Seldom[Literal["branches", "episodes"]] = "branches"
    """What a group's baseline compares: all rows, or episodes with the mean of their rows. Where an agent plays or
    spawns threads, and the advantage gives a row one number, `"episodes"` is the default."""
    staleness_control: StalenessControlConfig = StalenessControlConfig()


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


def default_unit(algo: Mapping[str, Any]) -> str:
    """Return the `baseline_unit` of a recipe whose episodes may branch: "episodes" where its advantage can do so."""
    preset = (find_preset(str(algo["preset"])) if algo.get("preset") else None) or {}
    given = algo.get("advantage")
    name = given.get("name") if isinstance(given, Mapping) else None
    name = name or preset.get("advantage", DEFAULTS["advantage"]).get("name")
    return "episodes" if _compares_episodes(str(name)) else "branches"


def _compares_episodes(advantage: str) -> bool:
    """Return whether an advantage may compare episodes; False for one that is not there, which the checks name."""
    try:
        found = signature.read("advantage", advantage)
    except ConfigError:
        return False
    return found is not None and found.compares_episodes


def resolve_settings(algo: Any) -> dict[str, Any]:
    """Every key of `DEFAULTS`, taken from the recipe, else its preset, else the default; checked.

    `algo` is a mapping or a dataclass. Raises ConfigError naming the key, the value and what is allowed.
    """
    given = _as_dict(algo)
    preset = given.pop("preset", None)
    of_preset = find_preset(str(preset)) if preset is not None else {}
    if of_preset is None:
        raise ConfigError(
            f"algo.preset: unknown preset {preset!r}{did_you_mean(str(preset), known_presets())}"
        )
    settings = copy.deepcopy(DEFAULTS)
    for layer in (of_preset, given):
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
    if settings["baseline_unit"] == "episodes" and not _compares_episodes(settings["advantage"]["name"]):
        allowed = sorted(filter(_compares_episodes, parts()["advantage"]))
        raise ConfigError(
            f"algo.baseline_unit: 'episodes' is for the advantages {', '.join(allowed)}, got "
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
    if not accepts(annotation, value):
        expected = ast.unparse(annotation) if annotation is not None else ""
        raise ConfigError(f"{where}: got {value!r}, allowed: {expected}")


def _string(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected a name, got {value!r}")
    return value
