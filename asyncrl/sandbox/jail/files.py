"""Reads and writes a session's files from outside, although programs inside may have manipulated the paths.

Every component of a path is opened relative to the previous one, without following links, so neither a link nor a
concurrent rename leads out of the folder.
"""

from __future__ import annotations

import os
import secrets
import stat

from asyncrl.errors import InputError
from asyncrl.sandbox.protocol import WORKDIR

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NoSuchFile(InputError):
    """There is nothing at that path."""


def relative_parts(path: str, workdir: str = WORKDIR) -> list[str]:
    """Return the names from `workdir` to `path`. Raises `InputError` for a path that leaves it."""
    inner = path
    if path.startswith("/"):
        if path != workdir and not path.startswith(workdir + "/"):
            raise InputError(f"sandbox path {path!r} is not below {workdir}")
        inner = path[len(workdir) :]
    parts = [part for part in inner.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise InputError(f"sandbox path {path!r} must not contain '..' or NUL")
    return parts


def _file_parts(path: str, workdir: str) -> list[str]:
    parts = relative_parts(path, workdir)
    if not parts:
        raise InputError(f"sandbox path {path!r} names no file")
    return parts


def _open_folder(
    root: int, parts: list[str], path: str, create_for: int | None = None, mode: int = 0o700
) -> int:
    """Return a descriptor of a folder below `root`; missing folders are made for the user id `create_for`, if
    given."""
    folder = os.dup(root)
    try:
        for name in parts:
            made = create_for is not None
            if create_for is not None:
                try:
                    os.mkdir(name, mode, dir_fd=folder)
                    if create_for >= 0:
                        os.chown(name, create_for, create_for, dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    made = False
            below = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            if made:
                os.fchmod(below, mode)
            os.close(folder)
            folder = below
    except OSError as error:
        os.close(folder)
        raise InputError(
            f"sandbox path {path!r}: {error.strerror} (symbolic links are not followed)"
        ) from error
    return folder


def read_file(root: int, path: str, max_bytes: int, workdir: str = WORKDIR) -> bytes:
    """See `Sandbox.read`. `root` is a descriptor of the session's folder."""
    parts = _file_parts(path, workdir)
    folder = _open_folder(root, parts[:-1], path)
    try:
        # Non-blocking: opening a FIFO that a program has left must not wait for its other end.
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError as error:
        raise NoSuchFile(f"sandbox path {path!r}: {error.strerror}") from error
    except OSError as error:
        raise InputError(f"sandbox path {path!r}: {error.strerror}") from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError(f"sandbox path {path!r} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InputError(f"sandbox file {path!r} is longer than {max_bytes} bytes")
    return data


def write_file(
    root: int, path: str, data: bytes, uid: int | None, workdir: str = WORKDIR, mode: int = 0o700
) -> None:
    """See `Sandbox.write`. The file belongs to `uid` and appears atomically."""
    parts = _file_parts(path, workdir)
    owner = -1 if uid is None else uid
    folder = _open_folder(root, parts[:-1], path, create_for=owner, mode=mode)
    # A new name that nothing inside can know, then a rename: this never writes through a prepared link or device.
    temporary = f".{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, mode, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, mode)
                os.fchown(fd, owner, owner)
                file.write(data)
            os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        raise InputError(f"sandbox path {path!r} cannot be written: {error.strerror}") from error
    finally:
        os.close(folder)
