"""Where engines serve the policies of a run."""

from __future__ import annotations


def policy_url(engine: str, name: str) -> str:
    """Return the URL at which an engine serves a policy: its address for the run's own (""), below it for others."""
    return f"{engine}/policies/{name}" if name else engine
