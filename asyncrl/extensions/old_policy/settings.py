"""The settings of scoring tokens under the versions that sampled them, keys of `[train]` and `[placement]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class OldPolicyConfig(Section):
    """A key of `[train]`."""

    old_policy: Seldom[Literal["trainer", "process", "interrupt"]] = "trainer"
    """How tokens are scored under the versions that sampled them, for objectives that read it: by copies in the
    trainer, by a process that scores groups while others are still being sampled, or by the trainer before each
    update, for which engines pause and say what they have sampled (docs/algorithms/proximal.md)."""


class OldPolicyPlacement(Section):
    """A key of `[placement]`."""

    old_policy: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """The GPU of the old-policy process (`train.old_policy`); left out, the trainer's first."""
