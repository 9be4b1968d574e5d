"""The settings of a reward for a short critical path, `[critical_path]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class CriticalPathConfig(Section):
    """A reward for agents that work at once: an episode's sampled tokens against those that must follow one another."""

    measured: Seldom[bool] = False
    """Whether each episode notes its critical path, in tokens (components `critical_path`, `acceleration`)."""
    factor: Seldom[float] = Field(0.0, ge=0, le=10)
    """What a successful episode earns for each time that its tokens exceed its critical path, up to `most` times:
    `factor * min(tokens / critical path - 1, most)`. 0.5 in ThreadWeaver."""
    most: Seldom[float] = Field(0.2, gt=0, le=100)
    """How many times at most are rewarded."""
