"""Published methods as sets of parts. A recipe's own parts override them. Nothing here imports torch.

Presets that need something a run must provide (a critic, a teacher, turn rewards, ...) say so through the
`@needs` of their parts. Where no correction is part of the publication, token TIS with cap 2 is added,
because rollouts here always come from another engine; override with `corrections: []`. GRPO's own clip is around
the policy that sampled, which is what `behavior_band` does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from asyncrl.extensions.table import rows

TIS: list[dict[str, Any]] = [{"name": "token_tis", "cap": 2.0}]
"""Where a publication has no correction of its own."""


def preset(advantage: str, loss: str, aggregation: str, /, **parts: Any) -> dict[str, Any]:
    """Return a preset of three named parts, with TIS and what else is given."""
    return {
        "advantage": {"name": advantage},
        "loss": {"name": loss},
        "aggregation": {"name": aggregation},
        "corrections": TIS,
        **parts,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "grpo": preset("grpo", "ppo_clip", "seq_mean_token_mean", corrections=[{"name": "behavior_band"}]),
    "dapo": preset("grpo", "dapo_clip", "token_mean", filters=[{"name": "dynamic_sampling"}]),
    "dr_mas": preset("multi_agent", "ppo_clip", "token_mean"),
    "m_grpo": preset(
        "multi_agent",
        "ppo_clip",
        "seq_mean_token_mean",
        advantage={"name": "multi_agent", "invocations": 4},
    ),
    "tis": preset("grpo", "ppo_clip", "token_mean"),
}
"""The presets whose parts are all the core's. Extensions add theirs at the seam `presets`."""


def find_preset(name: str) -> dict[str, Any] | None:
    """Return a preset, None where there is none of the name. An extension is imported for one of its own alone."""
    return PRESETS[name] if name in PRESETS else known_presets().get(name)


@functools.cache
def known_presets() -> Mapping[str, dict[str, Any]]:
    """Return all presets by name, the core's before those of extensions."""
    found = dict(PRESETS)
    for row in rows("presets"):
        found |= row.load()
    return MappingProxyType(found)
