"""The setting of branches, a key of `[rollout]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class BranchesConfig(Section):
    """A key of `[rollout]`."""

    branches: Seldom[int] = Field(0, ge=0)
    """Episodes of a group that branch off a sibling, before the turns about which the policy was least certain
    (docs/rollouts.md)."""
