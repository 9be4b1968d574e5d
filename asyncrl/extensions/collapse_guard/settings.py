"""The setting of the collapse guard, a key of `[train]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class GuardConfig(Section):
    """A key of `[train]`."""

    collapse_guard: Seldom[bool] = False
    """When the reward of fresh groups falls far below what it was, go back to the last good checkpoint with half the
    learning rate; halve it, too, when the policy moves far in a step (docs/algorithms/asynchrony-control.md)."""
