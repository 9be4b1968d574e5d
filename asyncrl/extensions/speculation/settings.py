"""The settings of speculative decoding, `engine.speculative`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from asyncrl.config_sections import PATH, Section, Seldom

DRAFT_MODELS = ("eagle", "eagle3", "mtp")
"""Methods of speculative decoding with a drafter that has weights of its own."""


class SpeculativeConfig(Section):
    """Speculative decoding (docs/speculative-decoding.md). It samples from the same distribution, and needs
    `rollout.temperature = 1`."""

    method: Seldom[Literal["off", "ngram", "suffix", "eagle", "eagle3", "mtp"]] = "off"
    """Where the proposed tokens come from: the context (ngram), earlier answers too (suffix), or a drafter."""
    num_speculative_tokens: Seldom[int] = Field(4, ge=1, le=32)
    """Tokens proposed at once."""
    model: Seldom[Annotated[str, PATH]] = ""
    """Folder or hub name of the drafter, for eagle and eagle3; mtp takes the layers of the policy's own model."""

    @model_validator(mode="after")
    def _drafter(self) -> SpeculativeConfig:
        if self.method in ("eagle", "eagle3") and not self.model:
            raise ValueError(f"model: must name the drafter for method={self.method!r}")
        if self.model and self.method not in DRAFT_MODELS:
            raise ValueError(f"model: must be left out for method={self.method!r}, got {self.model!r}")
        return self


class SpeculationConfig(Section):
    """A key of `[engine]`."""

    speculative: SpeculativeConfig = Field(default_factory=SpeculativeConfig)
    """Tokens proposed cheaply and verified together; off by default."""
