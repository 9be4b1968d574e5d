"""Presets of on-policy distillation. Nothing here imports torch."""

from __future__ import annotations

from typing import Any

from asyncrl.algo.presets import preset

PRESETS: dict[str, dict[str, Any]] = {
    "opd": preset("reinforce", "opd_sampled", "token_mean", corrections=[]),
    "opd_full": preset("reinforce", "opd_full", "token_mean", corrections=[]),
    "sdpo": preset("reinforce", "opd_full", "token_mean"),
}
