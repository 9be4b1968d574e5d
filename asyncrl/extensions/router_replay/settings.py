"""The setting of router replay, a key of `[train]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class RouterReplayConfig(Section):
    """A key of `[train]`."""

    router_replay: Seldom[bool] = False
    """For mixtures of experts: engines record the experts that each token was routed to, and the trainer's forward
    passes use these, with gate weights of its own routers (docs/engine-and-trainer.md)."""
