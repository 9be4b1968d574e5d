"""Where engines serve the policies of a run."""

from __future__ import annotations

from asyncrl.types import MAIN_POLICY


def policy_url(engine: str, name: str) -> str:
    """Return the URL at which an engine serves a policy: its address for the main one, below it for others."""
    return engine if name == MAIN_POLICY else f"{engine}/policies/{name}"
