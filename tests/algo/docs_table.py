"""The table of presets in docs/algorithms/presets.md, from the presets themselves.

`python -m tests.algo.docs_table` prints it.
"""

from __future__ import annotations

from typing import Any

from asyncrl.algo.presets import PRESETS
from asyncrl.algo.settings import DEFAULTS, needed, resolve_settings

EVERYWHERE = {"proximal", "behavior", "step_start"}


def preset_table() -> str:
    lines = [
        "| preset | advantage | loss | corrections | aggregation | also | needs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, preset in PRESETS.items():
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
        parts += [corrections, _part(settings["aggregation"]), "; ".join(also) or "–", words]
        lines.append(f"| `{name}` | " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def _part(part: dict[str, Any]) -> str:
    params = ", ".join(f"{k} {v}" for k, v in part.items() if k != "name")
    return f"`{part['name']}`" + (f" ({params})" if params else "")


if __name__ == "__main__":
    print(preset_table(), end="")
