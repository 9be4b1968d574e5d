"""Finds what stands between marks, in time proportional to the text: a policy writes marks by the thousand."""

from __future__ import annotations


def last_between(text: str, opening: str, closing: str) -> str | None:
    """Return what the last pair of marks encloses; None without one."""
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    return text[start + len(opening) : end] if start >= 0 else None


def last_fence(text: str) -> str | None:
    """Return what the last pair of three backticks encloses, the name of the language included; None without one."""
    parts = text.split("```")
    last = (len(parts) - 1) // 2 * 2 - 1
    return parts[last] if last > 0 else None
