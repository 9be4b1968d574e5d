"""Decides whether a program that a session's judge has started is the judge's or the agent's. Standard library only.

The agent's are programs in its folders, interpreters and tools that are given such a file before any file of the
judge's, and tools that read the current folder if that is the agent's. Code on the command
line or on the standard input is the judge's, who wrote it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

INLINE = {
    ("bash", "sh", "dash", "zsh"): re.compile(r"-[A-Za-z]*[cs]"),
    ("python",): re.compile(r"-[A-Za-ln-z]*c|-"),
    ("perl", "node", "ruby", "lua"): re.compile(r"-[a-z]*e|-"),
}
"""By the prefix of an interpreter's name: the options that are followed by the code itself."""


@dataclass(frozen=True)
class Places:
    """Paths as the programs see them."""

    tests: str
    logs: str
    writable: tuple[str, ...]
    """The agent's folders: its work, and those for temporary files."""

    def side(self, path: str) -> bool | None:
        """True for a path of the judge's, False for one of the agent's, None for any other."""
        if _below(path, (self.tests, self.logs)):
            return True
        return False if _below(path, self.writable) else None


def is_judges(pid: int, places: Places) -> bool:
    """Return whether the new program of process `pid` is the judge's. False if that cannot be determined."""
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
        folder = os.readlink(f"/proc/{pid}/cwd")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            argv = [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return False
    return decide(executable, argv, folder, places, lambda path: os.path.lexists(f"/proc/{pid}/root{path}"))


def decide(
    executable: str, argv: list[str], folder: str, places: Places, exists: Callable[[str], bool]
) -> bool:
    """See the head of this file. `exists` says whether an absolute path exists."""
    if places.side(executable) is False:
        return False
    name = os.path.basename(executable)
    inline = next((option for names, option in INLINE.items() if name.startswith(names)), None)
    named = False
    for argument in argv[1:]:
        if inline is not None and inline.fullmatch(argument):
            return True
        if argument.startswith("-") or not argument:
            named = named or any(place in argument for place in places.writable)
            continue
        path = os.path.normpath(os.path.join(folder, argument))
        side = places.side(path)
        # A plain word is a file only if there is one.
        if side is not None and ("/" in argument or exists(path)):
            return side
    if inline is not None and len(argv) == 1:
        return True
    return not named and places.side(folder) is not False


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
