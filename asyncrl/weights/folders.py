"""The folders of weights. Launchers use this module, so it imports nothing heavy."""

from __future__ import annotations

from pathlib import Path


def policy_weights(directory: str, name: str) -> str:
    """Return the folder for the weights of a run's further policy; "" for an engine that belongs to no run."""
    return str(Path(directory) / f"policy-{name}") if directory else ""
