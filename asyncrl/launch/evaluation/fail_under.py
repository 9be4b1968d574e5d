"""What `--fail-under` of `asyncrl eval` says."""

from __future__ import annotations

import sys


def any_under(means: dict[str, float | None], limit: float) -> bool:
    """Whether a checkpoint's score is below `--fail-under`, or not known; says which ones are."""
    under = {name: mean for name, mean in means.items() if mean is None or mean < limit}
    for name, mean in under.items():
        found = "no sample counts" if mean is None else f"{mean:.3f}"
        print(f"{name}: {found}, below --fail-under {limit:g}", file=sys.stderr)
    return bool(under)
