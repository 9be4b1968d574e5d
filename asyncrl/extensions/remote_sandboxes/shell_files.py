"""Reads and writes files through the shell, for sandboxes that can only run programs.

The path checks run inside, where hostile code may race them; all it can gain is a view of its own machine.
"""

from __future__ import annotations

import dataclasses

from asyncrl.errors import InfrastructureError, InputError
from asyncrl.sandbox.base import BaseSandbox
from asyncrl.sandbox.jail.files import relative_parts
from asyncrl.sandbox.protocol import MIB, WORKDIR

TIMEOUT_S = 60.0
LINK, NOT_REGULAR, TOO_LONG, FAILED, UNREADABLE = 81, 82, 83, 84, 85
COMPLAINTS = {
    LINK: "passes through a symbolic link or does not exist",
    NOT_REGULAR: "is not a regular file",
    TOO_LONG: "is too long",
    FAILED: "cannot be written",
    UNREADABLE: "cannot be read",
}

READ = f"""
[ "$(readlink -f -- "$1")" = "$1" ] || exit {LINK}
[ -f "$1" ] || exit {NOT_REGULAR}
[ "$(wc -c < "$1")" -le "$2" ] || exit {TOO_LONG}
cat -- "$1" || exit {UNREADABLE}
"""
WRITE = f"""
mkdir -p -- "$1" 2>/dev/null || exit {FAILED}
[ "$(readlink -f -- "$1")" = "$1" ] || exit {LINK}
cat > "$1/$3" && chmod 700 "$1/$3" && mv -f -T -- "$1/$3" "$1/$2" 2>/dev/null || {{ rm -f "$1/$3"; exit {FAILED}; }}
"""


class ShellFiles(BaseSandbox):
    """Adds `read` and `write` to a backend whose `_run` passes bytes unchanged."""

    async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
        inner = self._inner_file(path)
        return await self._script(READ, [inner, str(max_bytes)], b"", max_bytes, path)

    async def write(self, path: str, data: bytes) -> None:
        folder, _, name = self._inner_file(path).rpartition("/")
        # In chunks: the input of a program is limited, and so is the size of a file.
        if len(data) > self.limits.file_bytes:
            raise InputError(
                f"sandbox path {path!r}: {len(data)} bytes; limit file_bytes={self.limits.file_bytes}"
            )
        await self._script(WRITE, [folder, name, f".{name}.part"], data, MIB, path)

    async def _script(self, text: str, arguments: list[str], stdin: bytes, bound: int, path: str) -> bytes:
        argv = ["/bin/sh", "-c", text, "sh", *arguments]
        result = await self._run(argv, stdin, TIMEOUT_S, bound, None, WORKDIR)
        if result.returncode in COMPLAINTS:
            raise InputError(f"sandbox path {path!r} {COMPLAINTS[result.returncode]}")
        if not result.ok:
            short = dataclasses.replace(result, stdout=result.stdout[:200])
            raise InfrastructureError(f"sandbox file access failed: {short}")
        return result.stdout

    @staticmethod
    def _inner_file(path: str) -> str:
        parts = relative_parts(path)
        if not parts:
            raise InputError(f"sandbox path {path!r} names no file")
        return "/".join([WORKDIR, *parts])
