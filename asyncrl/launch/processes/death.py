"""Why a process died, read from the end of its log."""

from __future__ import annotations

import re

_PREFIX = re.compile(
    r"^(?:\[(?:rank|default)\d+\]:? ?)*(?:\([\w-]+ pid=\d+\) )?(?:ERROR [\d-]+ [\d:.]+ \[[^\]]*\] )?"
)
"""What torch puts before each line of a rank's error, and vLLM before those of a process of its own."""
_IN_GROUP = re.compile(r"^\s*[|+] ")
_MEMBER = re.compile(r"^\s*\+[+-]*-{8,} \d+ -{8,}$")
"""What precedes each error of a group."""
_TRACEBACK = "Traceback (most recent call last):"
_OWN = "asyncrl: "
_POINTERS = ("its log says why", "See root cause above", "ChildFailedError")
"""Errors that only point to another one, which is in the same log."""
_MEMORY = re.compile(
    r"^MemoryError|OutOfMemoryError|out of memory|can(?:'t|not) allocate memory|No available memory for the cache",
    re.IGNORECASE,
)


def last_error(log: str) -> str:
    """Return the last error of a log: the line that ends a traceback, or asyncrl's message before it exits.

    The last line where there is neither. An error that only points to another one counts when there is no other.
    """
    found, in_traceback, last = [], False, ""
    for raw in log.splitlines():
        line = _PREFIX.sub("", raw)
        line = _IN_GROUP.sub("", line, count=1)
        last = line.strip() or last
        if line.rstrip().endswith(_TRACEBACK) or _MEMBER.match(raw):
            in_traceback = True
        elif line.startswith(_OWN):
            found.append(line.removeprefix(_OWN).strip())
            in_traceback = False
        elif in_traceback and line.strip() and not line[0].isspace():
            found.append(line.strip())
            in_traceback = False
    roots = [line for line in found if not any(pointer in line for pointer in _POINTERS)]
    return (roots or found or [last])[-1]


def address_taken(error: str) -> bool:
    """True for the error of a service whose address was taken: unlike a wrong setting, that may pass."""
    return "cannot listen on" in error or "is in use" in error


def lacks_memory(error: str) -> bool:
    """True for the error of a process that could not have the memory it asked for."""
    return _MEMORY.search(error) is not None
