"""The table of presets in docs/algorithms/presets.md, from the presets themselves.

`python -m tests.algo.docs_table` prints it.
"""

from __future__ import annotations

from typing import Any

from asyncrl.algo.presets import known_presets
from asyncrl.algo.settings import DEFAULTS, needed, resolve_settings

EVERYWHERE = {"proximal", "behavior", "step_start"}
LEARNS = "learns in 5 seeds at limits 0 to 4 ([study](../studies/staleness.md))"
SHOWN = {
    "grpo": "the default ([study](../studies/same_end.md))",
    "decoupled_ppo": LEARNS,
    "tis": LEARNS,
    "ppo_ewma": LEARNS,
    "vcpo": LEARNS,
    "gigpo": "learns in 5 seeds; better than `grpo`: not shown ([study](../studies/turn_credit.md))",
    "hgpo": "learns in 5 seeds; better than `grpo`: not shown ([study](../studies/turn_credit.md))",
    "ppo_turn": "learns in 5 seeds; better than `grpo`: not shown ([study](../studies/turn_credit.md))",
    "archer": "learns in 5 seeds; better than `ppo_turn`: not shown ([study](../studies/archer.md))",
    "gdpo": "learns in 5 seeds, ends below `grpo` ([study](../studies/three_rewards.md))",
    "mc_grpo": "learns in 10 seeds; better than `grpo`: not shown ([study](../studies/small_groups.md))",
}
"""What studies of this project show of a preset, with five seeds or more. The others: as published, not shown here."""


def preset_table() -> str:
    lines = [
        "| preset | advantage | loss | corrections | aggregation | also | needs | seen here |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, preset in known_presets().items():
        settings = resolve_settings({"preset": name, "aggregation": {**preset["aggregation"]}})
        corrections = ", ".join(map(_part, settings["corrections"])) or "none"
        also = [
            f"{key}: {_part(settings[key])}"
            for key in ("normalize", "proximal")
            if settings[key] != DEFAULTS[key]
        ]
        also += [f"filter: {_part(part)}" for part in settings["filters"]]
        if settings["lr_scaling"] != DEFAULTS["lr_scaling"]:
            also.append(f"learning rate by ESS^{settings['lr_scaling']['power']}")
        if settings["kl"]["coef"]:
            also.append(f"KL {settings['kl']['estimator']} {settings['kl']['coef']}")
        words = ", ".join(sorted(needed(settings) - EVERYWHERE)) or "–"
        parts = [_part(settings[key]) for key in ("advantage", "loss")]
        parts += [
            corrections,
            _part(settings["aggregation"]),
            "; ".join(also) or "–",
            words,
            SHOWN.get(name, "as published, not shown here"),
        ]
        lines.append(f"| `{name}` | " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def _part(part: dict[str, Any]) -> str:
    params = ", ".join(f"{k} {v}" for k, v in part.items() if k != "name")
    return f"`{part['name']}`" + (f" ({params})" if params else "")


if __name__ == "__main__":
    print(preset_table(), end="")
