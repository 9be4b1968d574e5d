"""A small image of this machine's own programs for a container engine, which then needs no registry."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

NAME = "localhost/small:1"
PROGRAMS = (
    "base64", "basename", "bash", "cat", "chmod", "chown", "cp", "cut", "date", "dirname", "env", "find", "git", "grep",
    "head", "id", "ls", "mkdir", "mktemp", "mv", "printf", "rm", "sed", "setsid", "sh", "sleep", "sort", "stat", "tail",
    "tar", "tee", "test", "timeout", "touch", "tr", "true", "uname", "wc", "xargs",
)  # fmt: skip


def copy_programs(root: Path) -> Path:
    """Lay programs and what they are linked with below a folder, at the places that they have here."""
    for name in PROGRAMS:
        found = Path(shutil.which(name))
        _copy(found, root, Path("/bin") / name)
        linked = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            _copy(Path(library), root, Path(library))
    return root


def _copy(source: Path, root: Path, place: Path) -> None:
    target = root / place.relative_to("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source.resolve(), target)


def write_context(folder: Path) -> Path:
    """Write the context that makes the image of an engine's `build`."""
    copy_programs(folder / "root")
    for line, file in (
        ("root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n", "passwd"),
        ("", "group"),
    ):
        (folder / "root" / "etc").mkdir(exist_ok=True)
        (folder / "root" / "etc" / file).write_text(line)
    (folder / "root" / "tmp").mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY root/ /\n")
    return folder
