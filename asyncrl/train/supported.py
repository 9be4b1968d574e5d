"""What the trainer can give an objective, checked before anything starts. Imports no torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo.needs import KNOWN
from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.errors import ConfigError

PROVIDED = frozenset(
    {
        "reference", "entropy", "behavior", "proximal", "versions", "scores", "turns", "observations", "components",
        "agents", "statistics",
    }
)  # fmt: skip
"""Words of `asyncrl.algo.needs.KNOWN` that the trainer provides."""
ANCHORS = ("recompute", "loglinear", "linear", "behavior")
"""Proximal forms that need no copies of past weights."""


def check_supported(algo: Any) -> dict[str, Any]:
    """Return the resolved `algo` section. Raises `ConfigError` for what is wrong or what the trainer lacks."""
    settings = resolve_settings(algo)
    missing = sorted(needed(settings) - PROVIDED)
    if missing:
        what = "; ".join(f"{name} ({KNOWN[name]})" for name in missing)
        raise ConfigError(f"algo: this objective needs what the trainer does not provide: {what}")
    anchor = settings["proximal"]["name"]
    if anchor not in ANCHORS and ":" not in anchor:
        raise ConfigError(
            f"algo.proximal.name: {anchor!r} needs copies of past weights, which the trainer does not keep; "
            f"allowed: {', '.join(ANCHORS)}"
        )
    if settings["denominator"] != "original":
        raise ConfigError(
            f"algo.denominator: the trainer divides by the counts before rejection, got {settings['denominator']!r}; "
            "allowed: original"
        )
    return settings
