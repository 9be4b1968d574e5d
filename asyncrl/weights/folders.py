"""Where weights travel. Launchers know it, too, and load nothing heavy for it."""

from __future__ import annotations

from pathlib import Path


def policy_weights(directory: str, name: str) -> str:
    """Return where the weights of a run's further policy travel; "" for an engine that belongs to no run."""
    return str(Path(directory) / f"policy-{name}") if directory else ""
