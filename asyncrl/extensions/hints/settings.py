"""The setting of hints, a key of `[rollout]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class HintsConfig(Section):
    """A key of `[rollout]`."""

    hinted: Seldom[int] = Field(0, ge=0)
    """Episodes of a group that are given the first turn of `task.data["hint"]`."""
