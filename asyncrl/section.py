"""A table of settings: what its class says is how they are checked, and what docs/configuration.md shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict

SELDOM = "seldom"
T = TypeVar("T")
Seldom = Annotated[T, SELDOM]
"""A setting that most runs leave alone; docs/configuration.md lists it after the others."""
PATH = "path"
"""Marks a setting that names a file or folder, whatever it begins with: `~` and variables in it are expanded."""


class Section(BaseModel):
    """A table of settings. The text below a field describes it; `asyncrl.commands.config_page` reads it there, so that
    processes that never show it need not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    fixed: ClassVar[bool] = False
    """Whether it is part of what makes a run the run it is: it cannot change when the run is resumed."""
    of_further_policies: ClassVar[Mapping[str, Any]] = {}
    """The values that its keys have for a further policy, whatever the recipe gives."""
    composed: ClassVar[bool] = False
    """Whether it is made of a core's section and keys of extensions, see `asyncrl.extensions.settings`."""

    @property
    def numbers(self) -> Mapping[str, tuple[int, int]]:
        """Least and most processes by role ("rollout", "env", "engine"), of those whose number it lets change."""
        return {}


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    """True for the class of a table of settings."""
    return isinstance(kind, type) and issubclass(kind, Section)
