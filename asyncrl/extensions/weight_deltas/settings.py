"""The setting of deltas, a key of `[engine]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class DeltaConfig(Section):
    """A key of `[engine]`."""

    weight_delta: Seldom[bool] = False
    """Send only the elements that changed since the version before, where that saves half of the bytes or more. Costs
    processor time and saves network: for engines, or a folder of weights, on other machines."""
