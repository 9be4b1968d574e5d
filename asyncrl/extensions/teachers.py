"""What `teacher.path` names: a model, a server, or what an extension names (`teachers`). Torch-free."""

from __future__ import annotations

from asyncrl.config_sections import is_url
from asyncrl.extensions.table import by_name


def is_loaded(path: str) -> bool:
    """True for what a reference or a teacher is loaded from: a folder or a hub name."""
    return path != "" and not is_url(path) and path not in by_name("teachers")
