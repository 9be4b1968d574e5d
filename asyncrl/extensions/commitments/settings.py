"""The setting of commitments, a key of `[train]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class CommitmentsConfig(Section):
    """A key of `[train]`."""

    commitments: Seldom[bool] = False
    """Have engines commit to the hidden states that tokens are sampled from, and compare these with the trainer's own;
    a worker whose groups do not fit is quarantined (docs/scaling.md)."""
