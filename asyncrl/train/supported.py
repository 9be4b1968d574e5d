"""Checks, before anything starts, that a run provides what its objective needs. Imports no torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo import signature
from asyncrl.algo.settings import needed, part_needs, resolve_settings
from asyncrl.config import Config, is_url
from asyncrl.errors import ConfigError


def check_supported(config: Config) -> dict[str, Any]:
    """Return the resolved `algo` section of a `Config`.

    Raises `ConfigError` for mistakes in it, and for what it needs and the rest of the recipe does not provide.
    """
    settings = resolve_settings(config.algo)
    words = needed(settings)
    if words & {"teacher", "teacher_logits"} and not config.teacher.path:
        raise ConfigError(
            "teacher.path: this objective needs a teacher; give a model, or the address of a vLLM server with one"
        )
    if "teacher_logits" in words and is_url(config.teacher.path):
        raise ConfigError(
            "teacher.path: this objective reads the teacher's whole distribution, which no server gives; give a model"
        )
    for name in ("reference", "teacher"):
        if is_url(getattr(config, name).path) and config.rollout.temperature != 1.0:
            raise ConfigError(
                f"{name}.path: a served model scores at temperature 1; rollout.temperature must be 1, got "
                f"{config.rollout.temperature:g}"
            )
    if is_url(config.reference.path) and config.reference.refresh_every:
        raise ConfigError("reference.refresh_every: a served reference cannot be refreshed; allowed: 0")
    if settings["staleness_control"]["enabled"]:
        _check_staleness_control(config, settings["staleness_control"])
    check_schedule(config, settings)
    check_group_tricks(config, words, settings["advantage"]["name"])
    if "score_norms" in words and config.train.zero_stage == 3:
        raise ConfigError(
            f"train.zero_stage: algo.advantage={settings['advantage']} reads the norm of each trajectory's gradient, "
            "which needs train.zero_stage below 3, got 3"
        )
    return settings


def _check_staleness_control(config: Config, rule: dict[str, Any]) -> None:
    if rule["minimum"] > config.buffer.max_staleness:
        raise ConfigError(
            f"algo.staleness_control.minimum: must be at most buffer.max_staleness={config.buffer.max_staleness}, "
            f"got {rule['minimum']}"
        )
    if rule["low_ess"] >= rule["high_ess"]:
        raise ConfigError(
            f"algo.staleness_control.low_ess: must be below high_ess={rule['high_ess']:g}, got {rule['low_ess']:g}"
        )


def check_group_tricks(config: Config, words: frozenset[str], advantage: str) -> None:
    """Refuse branches and hints that a group cannot hold. Raises `ConfigError`."""
    rollout = config.rollout
    for name in ("branches", "hinted"):
        count = getattr(rollout, name)
        if count >= rollout.group_size and count:
            raise ConfigError(
                f"rollout.{name}: must be below rollout.group_size={rollout.group_size}, got {count}"
            )
        if count and config.env.name == "agent":
            raise ConfigError(f"rollout.{name}: must be 0 with env.name='agent', which plays its own turns")
    if "branches" in words and not rollout.branches:
        raise ConfigError(f"rollout.branches: must be above 0 for algo.advantage.name={advantage!r}, got 0")


def check_schedule(config: Config, settings: dict[str, Any]) -> None:
    """Refuse what a schedule cannot do. Raises `ConfigError`."""
    schedule = config.train.schedule
    if settings["staleness_control"]["enabled"] and schedule not in ("asynchronous", "partial"):
        raise ConfigError(
            f"algo.staleness_control.enabled: must be false under train.schedule={schedule!r}, whose bound is fixed"
        )
    if schedule == "asynchronous" and config.engine.weight_transfer != "shared_file":
        raise ConfigError(
            "engine.weight_transfer: must be 'shared_file' under train.schedule='asynchronous', got "
            f"{config.engine.weight_transfer!r}"
        )
    if schedule != "periodic":
        return
    whole = {
        f"train.num_minibatches={config.train.num_minibatches}": config.train.num_minibatches > 1,
        **_beyond_group(settings, "advantage"),
        **_beyond_group(settings, "normalize"),
        f"algo.loss.name={settings['loss']['name']!r}": _measures_batch("loss", settings["loss"]),
        "algo.denominator='kept'": settings["denominator"] == "kept",
        "algo.lr_scaling": bool(settings["lr_scaling"]["power"]),
        "algo.kl.where='reward'": settings["kl"]["where"] == "reward",
        "a critic": "values" in needed(settings),
        **{
            f"algo.corrections: {part['name']!r}": _measures_batch("correction", part)
            for part in settings["corrections"]
        },
    }
    wrong = [name for name, reads in whole.items() if reads]
    if wrong:
        raise ConfigError(
            f"train.schedule: 'periodic' trains on groups as they arrive, which {wrong[0]} does not allow since it "
            "reads the whole batch; allowed: synchronous, one_step_off, asynchronous, partial"
        )


def _beyond_group(settings: dict[str, Any], kind: str) -> dict[str, bool]:
    """Return the key for which an advantage or a normalisation reads beyond a row's own group, and whether it does."""
    part = settings[kind]
    found = signature.read(kind, part["name"])
    key = found.beyond_group(part) if found is not None else "name"
    return {f"algo.{kind}.{key}={part.get(key)!r}": key is not None}


def _measures_batch(kind: str, part: dict[str, Any]) -> bool:
    return bool(part_needs(kind, part) & {"step_statistics", "ratio_statistics"})
