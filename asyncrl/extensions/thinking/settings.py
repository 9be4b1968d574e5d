"""The settings of bounded thinking, keys of `[eval]` and `[rollout]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class ThinkingConfig(Section):
    """Keys of `[eval]`."""

    most_thinking: Seldom[int | None] = Field(None, ge=0)
    """Tokens after which thinking is ended in evaluations, and the answer begins; left out, it ends by itself."""
    least_thinking: Seldom[int | None] = Field(None, ge=1)
    """Tokens before which thinking goes on in evaluations, with "Wait" in place of its end."""

    @property
    def bounds_thinking(self) -> bool:
        """Whether either is given."""
        return self.most_thinking is not None or self.least_thinking is not None


class TrainedThinkingConfig(Section):
    """A key of `[rollout]`."""

    most_thinking: Seldom[int | None] = Field(None, ge=0)
    """Tokens after which thinking is ended while training samples, and the answer begins; what is put in is not
    trained. Evaluations have `eval.most_thinking`."""

    @property
    def bounds_thinking(self) -> bool:
        """Whether it is given."""
        return self.most_thinking is not None
