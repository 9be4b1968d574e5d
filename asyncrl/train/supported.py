"""What the trainer can give an objective, checked before anything starts. Imports no torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.errors import ConfigError

GROUP_LOCAL = (
    *("grpo", "dr_grpo", "rloo", "opo", "passk", "maxrl", "mc_grpo", "reinforce", "remax", "mt_grpo"),
    *("gigpo", "hgpo", "ui_s1", "tree"),
)
"""Advantages that read nothing beyond the row's own group."""
WHOLE_BATCH_CORRECTIONS = ("m2po",)


def check_supported(config: Any) -> dict[str, Any]:
    """Return the resolved `algo` section of a `Config`.

    Raises `ConfigError` for what is wrong in it, and for what it needs and the rest of the recipe does not give.
    """
    settings = resolve_settings(config.algo)
    words = needed(settings)
    if words & {"teacher", "teacher_logits"} and not (config.teacher.path or config.teacher.url):
        raise ConfigError("teacher.path: this objective needs a teacher; give teacher.path or teacher.url")
    if "teacher_logits" in words and not config.teacher.path:
        raise ConfigError(
            "teacher.path: this objective reads the teacher's whole distribution, which no server gives; set it"
        )
    for name in ("reference", "teacher"):
        if getattr(config, name).url and config.rollout.temperature != 1.0:
            raise ConfigError(
                f"{name}.url: a served model scores at temperature 1; rollout.temperature must be 1, got "
                f"{config.rollout.temperature:g}"
            )
    if config.reference.url and config.reference.refresh_every:
        raise ConfigError("reference.refresh_every: a served reference cannot be refreshed; allowed: 0")
    if config.staleness_control.enabled:
        _check_staleness_control(config)
    check_schedule(config, settings)
    check_group_tricks(config, words)
    if settings["advantage"].get("score") == "gradient" and config.train.zero_stage == 3:
        raise ConfigError("algo.advantage.score: 'gradient' needs train.zero_stage below 3, got 3")
    return settings


def _check_staleness_control(config: Any) -> None:
    rule = config.staleness_control
    if rule.minimum > config.buffer.max_staleness:
        raise ConfigError(
            f"staleness_control.minimum: must be at most buffer.max_staleness={config.buffer.max_staleness}, "
            f"got {rule.minimum}"
        )
    if rule.low_ess >= rule.high_ess:
        raise ConfigError(
            f"staleness_control.low_ess: must be below high_ess={rule.high_ess:g}, got {rule.low_ess:g}"
        )


def check_group_tricks(config: Any, words: frozenset[str]) -> None:
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
        raise ConfigError("rollout.branches: must be above 0 for algo.advantage.name='tree', got 0")


def check_schedule(config: Any, settings: dict[str, Any]) -> None:
    """Refuse what a schedule cannot do. Raises `ConfigError`."""
    schedule = config.train.schedule
    if config.staleness_control.enabled and schedule not in ("asynchronous", "partial"):
        raise ConfigError(
            f"staleness_control.enabled: must be false under train.schedule={schedule!r}, whose bound is fixed"
        )
    if schedule == "asynchronous" and config.engine.weight_transfer != "shared_file":
        raise ConfigError(
            "engine.weight_transfer: must be 'shared_file' under train.schedule='asynchronous', got "
            f"{config.engine.weight_transfer!r}"
        )
    if schedule != "periodic":
        return
    advantage, corrections = settings["advantage"], settings["corrections"]
    whole = {
        f"train.num_minibatches={config.train.num_minibatches}": config.train.num_minibatches > 1,
        f"algo.advantage.name={advantage['name']!r}": advantage["name"] not in GROUP_LOCAL,
        "algo.advantage.std='batch'": advantage.get("std") == "batch",
        f"algo.normalize.name={settings['normalize']['name']!r}": settings["normalize"]["name"] != "none",
        "algo.loss.name='sat'": settings["loss"]["name"] == "sat",
        "algo.denominator='kept'": settings["denominator"] == "kept",
        "algo.lr_scaling": bool(settings["lr_scaling"]["power"]),
        "algo.kl.where='reward'": settings["kl"]["where"] == "reward",
        "a critic": "values" in needed(settings),
        **{
            f"algo.corrections: {part['name']!r}": part["name"] in WHOLE_BATCH_CORRECTIONS
            or bool(part.get("batch_normalize"))
            for part in corrections
        },
    }
    wrong = [name for name, reads in whole.items() if reads]
    if wrong:
        raise ConfigError(
            f"train.schedule: 'periodic' trains on groups as they arrive, which {wrong[0]} does not allow since it "
            "reads the whole batch; allowed: synchronous, one_step_off, asynchronous, partial"
        )
