"""What the trainer can give an objective, checked before anything starts. Imports no torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.errors import ConfigError


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
