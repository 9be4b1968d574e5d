"""How an expert divides a task among threads."""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """What the `parts` method of an environment returns, from which `threads` makes demonstrations."""

    prompts: tuple[str, ...]
    """What each thread is given."""
    works: tuple[str, ...]
    """What each writes. Its last line is what comes back."""
    answer: str
    """The answer once all have come back."""
