"""The settings of a teacher, `[teacher]`."""

from __future__ import annotations

from asyncrl.config_sections import OtherModelConfig


class TeacherConfig(OtherModelConfig):
    """The teacher of on-policy distillation."""

    path: str = ""
    """As `reference.path`, or `self`: the policy itself, shown a success of the same group before what it scores
    (docs/algorithms/losses.md). Objectives that distil need one."""

    @classmethod
    def is_name(cls, path: str) -> bool:
        """See `OtherModelConfig`: what extensions name (`teachers`)."""
        from asyncrl.extensions.table import by_name

        return path in by_name("teachers")
