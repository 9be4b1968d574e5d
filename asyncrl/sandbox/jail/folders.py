"""The folders of sessions: size-limited memory file systems in the launcher's own mount namespace.

The mounts are invisible to every other process on the host and vanish with the launcher, however it ends. Where
mounting is not allowed, plain folders under the temporary directory are used, without a quota.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.sandbox.jail import kernel
from asyncrl.scratch import scratch_folder

EMPTY_CANDIDATES = ("/media", "/mnt", "/srv", "/opt", "/home")
"""Folders that every Linux has, often empty; one is covered, in the launcher's own view only."""
MAX_FILES = 16384
MAX_CLEARED = 1000
"""Files of a session up to which emptying its folder takes the launcher no longer than making another."""
WORK_MODE = 0o700
WORK_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
GET_FLAGS, GET_XATTR = 0x80086601, 0x801C581F
"""FS_IOC_GETFLAGS and FS_IOC_FSGETXATTR, see ioctl_iflags(2)."""
ETC_COPIED = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/localtime",
    "/etc/java-*-openjdk",
)
"""Parts of the host's /etc that system programs need (alternatives contain awk, java ...). None is secret."""
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/work:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def remove_all(folder: int) -> None:
    """Remove whatever a folder holds, by its descriptor: no name in it is followed. Raises `OSError`."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@dataclass
class Session:
    """One session's files."""

    path: str
    """Folder with `work`, `tmp`, `shm`, and the judge's `tests` and `logs`."""
    uid: int | None
    disk_bytes: int
    exposed: list[str] = field(default_factory=list)
    work_flags: bytes = b""
    """Of `work`, when it was made."""
    networks: dict[str, int] = field(default_factory=dict)
    """Descriptors of the network namespaces that its programs share, by name."""

    def network(self, name: str) -> int:
        """Return one, empty unless `listen` has made it. One per session instead of per program: making one is a third
        of a jail's cost."""
        if name not in self.networks:
            self.networks[name], _ = kernel.new_network_namespace()
        return self.networks[name]

    def listen(self, name: str, ports: Sequence[int]) -> list[int]:
        """Make one in which these ports of the loopback listen; return their sockets, which the caller closes."""
        self.networks[name], sockets = kernel.new_network_namespace(ports)
        return sockets


class Folders:
    """Makes and removes session folders."""

    def __init__(self) -> None:
        self.mounts = self._enter_namespace()
        self._covered = ""
        self._count = 0
        if self.mounts:
            self._covered = next((p for p in EMPTY_CANDIDATES if _is_empty(p)), "")
        self._held = contextlib.ExitStack()
        self.base = self._covered or str(self._held.enter_context(scratch_folder("sandbox")))
        if self.mounts:
            kernel.mount(
                "tmpfs", self.base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,mode=0711"
            )
        else:
            os.chmod(self.base, 0o711)
        self._assemble_etc(f"{self.base}/etc")
        self._assemble_root(f"{self.base}/root")

    @staticmethod
    def _assemble_root(target: str) -> None:
        """Make an empty root folder with the mount points of a container."""
        for name in ("usr", "etc", "proc", "dev", "sys", "tmp", "work"):
            os.makedirs(f"{target}/{name}", 0o755)
        for name in ("lib", "lib64", "lib32", "bin", "sbin"):
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{target}/{name}")
            elif os.path.isdir(f"/{name}"):
                os.mkdir(f"{target}/{name}", 0o755)

    @staticmethod
    def _assemble_etc(target: str) -> None:
        """Make one folder to mount as /etc, because each further mount slows every program's start."""
        os.makedirs(f"{target}/ssl", 0o755)
        for pattern in ETC_COPIED:
            for source in glob.glob(pattern):
                with contextlib.suppress(OSError, shutil.Error):
                    if os.path.isdir(source):
                        shutil.copytree(source, f"{target}/{source[5:]}", symlinks=True)
                    else:
                        shutil.copy(source, f"{target}/{source[5:]}", follow_symlinks=False)
        for name, text in ETC.items():
            with open(f"{target}/{name}", "w") as file:
                file.write(text)

    @staticmethod
    def _enter_namespace() -> bool:
        uid, gid = os.geteuid(), os.getegid()
        try:
            if uid == 0:
                kernel.unshare(kernel.CLONE_NEWNS)
            else:
                kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
                for name, text in (
                    ("setgroups", "deny"),
                    ("uid_map", f"{uid} {uid} 1"),
                    ("gid_map", f"{gid} {gid} 1"),
                ):
                    with open(f"/proc/self/{name}", "w") as file:
                        file.write(text)
            kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        except OSError:
            return False
        return True

    def open(self, uid: int | None, disk_bytes: int, expose: list[str]) -> Session:
        """Make a session's folder, owned by `uid`, and mount `expose` (host paths) next to it."""
        self._count += 1
        path = f"{self.base}/s{self._count}"
        session = Session(path, uid, disk_bytes)
        owner = -1 if uid is None else uid
        # Not owned by the session: a program that sees it must not replace the folders in it.
        os.mkdir(path, 0o711)
        if self.mounts:
            options = f"size={disk_bytes},nr_inodes={MAX_FILES},mode=0711"
            kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        os.mkdir(f"{path}/tests", 0o755)
        for name in ("work", "tmp", "shm", "logs"):
            os.mkdir(f"{path}/{name}", WORK_MODE)
            os.chown(f"{path}/{name}", owner, owner)
        fd = os.open(f"{path}/work", WORK_FLAGS)
        try:
            session.work_flags = _inode_flags(fd)
        finally:
            os.close(fd)
        for number, source in enumerate(expose):
            session.exposed.append(self._expose(source, f"{path}.m{number}"))
        return session

    def _expose(self, source: str, target: str) -> str:
        """Return a path to `source` that avoids folders the sandbox user cannot enter."""
        if not self.mounts:
            return source
        if os.path.isdir(source):
            os.mkdir(target, 0o755)
        else:
            with open(target, "w"):
                pass
        kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
        return target

    def clear(self, session: Session) -> None:
        """Empty `work`, the only folder that programs of a warm interpreter can write to and that outlives them.

        Raises `OSError` if it cannot be left as `open` made it, or holds so much that a new one costs less.
        """
        fd = os.open(f"{session.path}/work", WORK_FLAGS)
        try:
            room = os.fstatvfs(fd)
            if room.f_files - room.f_ffree > MAX_CLEARED:
                raise OSError(f"more than {MAX_CLEARED} files")
            remove_all(fd)
            if attributes := os.listxattr(fd):
                raise OSError(f"attributes {attributes} stay")
            if _inode_flags(fd) != session.work_flags:
                raise OSError("inode flags stay")
            os.fchmod(fd, WORK_MODE)
            os.utime(fd)
        finally:
            os.close(fd)

    def close(self, session: Session) -> None:
        """Remove the session's files."""
        for network in session.networks.values():
            os.close(network)
        if not self.mounts:
            shutil.rmtree(session.path, ignore_errors=True)
            return
        for target in session.exposed:
            kernel.unmount(target)
            with contextlib.suppress(OSError):
                (os.rmdir if os.path.isdir(target) else os.unlink)(target)
        kernel.unmount(session.path)
        os.rmdir(session.path)

    def over_quota(self, session: Session) -> bool:
        """Return whether its files take too much space; for sessions in a plain folder, where nothing else limits
        them."""
        taken = count = 0
        for folder, _, names in os.walk(session.path):
            for name in names:
                with contextlib.suppress(OSError):
                    taken += os.lstat(os.path.join(folder, name)).st_blocks * 512
                count += 1
                if taken > session.disk_bytes or count > MAX_FILES:
                    return True
        return False

    def remove_base(self) -> None:
        """Called at the end; leaves nothing on the host."""
        if self.mounts:
            with contextlib.suppress(OSError):
                kernel.unmount(self.base)
        self._held.close()


def _inode_flags(fd: int) -> bytes:
    """Return the flags of a folder (such as nodump, noatime, append only) and its project, which its owner may set and
    no other call shows; b"" where its file system has none."""
    found = bytearray()
    for request, size in ((GET_FLAGS, 8), (GET_XATTR, 28)):
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(fd, request, bytes(size))
            # The number of extents, in between, says how many files there are.
            found += answer if size == 8 else answer[:8] + answer[12:16]
    return bytes(found)


def _is_empty(path: str) -> bool:
    try:
        return not os.path.islink(path) and not os.listdir(path)
    except OSError:
        return False
