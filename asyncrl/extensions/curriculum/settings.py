"""The settings of a curriculum, `[curriculum]`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from asyncrl.config_sections import Section, Seldom

MAX_POOL = 100_000
"""Tasks that a curriculum may choose among. They go to the buffer in one message."""


class CurriculumConfig(Section):
    """Which tasks are played, chosen by what came of earlier ones (docs/curriculum.md)."""

    fixed: ClassVar[bool] = True

    name: str = Field("file_order", min_length=1)
    """file_order: the environment's or the task file's own order. Otherwise uniform, window, paced, vade, insight,
    gdro, similarity, v0, staged, xrpo, or an import path such as `my_curriculum.py:MyCurriculum`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the curriculum itself, the keyword-only arguments of its constructor."""
    pool: Seldom[int] = Field(1024, ge=1, le=MAX_POOL)
    """Tasks that it chooses among, the first of the environment's list; those of a task file are all in the pool."""
    turn_slack: Seldom[float] = Field(0.0, ge=0)
    """Turns that an episode may have, as a multiple of the longest success that was seen at its task; 0 leaves all at
    `rollout.max_turns` (docs/curriculum.md)."""
