"""Which members of a job there are, as those who use them see it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def members(job: dict[str, Any] | None, role: str, known: Collection[str]) -> set[str]:
    """Return the addresses of the members in `role`, "engine" or "env".

    job: what the buffer answered, None when it gave no answer. Whoever was known before stays a member then, and also
    while a buffer that has just started may not have heard of everybody yet: only what is known to have left is let go.
    """
    if job is None:
        return set(known)
    found = set(job["joined"][role])
    return found if job["settled"] else found | (set(known) - set(job["left"]))
