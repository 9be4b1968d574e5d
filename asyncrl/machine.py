"""What of this machine a process may use: containers and batch systems give it less than there is."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
UNLIMITED_BYTES = 2**60
"""From here on a limit of cgroup v1 is none."""
LEAST_FILES = 1024
WANTED_FILES = 65536
USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""What `getpass.getuser` reads, in its order, before it looks up the user id."""


def usable_cpus() -> int:
    """Return how many CPUs this process may use, at least 1: those it may run on, within its quota of time.

    A quota that is no whole number is rounded down. Sources: `sched_setaffinity(2)`; `cpu.max` of cgroup v2, and
    `cpu.cfs_quota_us` of v1, of this process's group and those above it.
    """
    quotas = [int(quota) for quota in _cpu_quotas()]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def usable_memory_bytes(total_bytes: int) -> int:
    """Return how much memory this process may use, the machine's `total_bytes` unless a cgroup allows less."""
    return min([total_bytes, *_memory_limits()])


def name_user() -> None:
    """Give a user id without an account, as in containers with an arbitrary one, a name by its environment variable.

    Libraries ask for it while they are imported (`torch._inductor` does), and fail without.
    """
    if any(os.environ.get(name) for name in USER_VARIABLES):
        return
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ["USER"] = f"uid{os.getuid()}"


def writable_caches() -> None:
    """Have libraries keep what they cache in a folder of the user's below the temporary one where the home cannot be
    written, as of a user id without an account, whose home is "/", or in a read-only container.

    Variables that are set stay, except where `HF_HOME` is read-only: models are read from there, and tables of rows are
    written elsewhere.
    """
    home = Path(os.environ.get("HOME") or "~").expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    elsewhere: dict[str, str] = {}
    if not _is_writable(hub):
        elsewhere["HF_DATASETS_CACHE"] = "huggingface/datasets"
        if not hub.exists() and "HF_HOME" not in os.environ:
            elsewhere["HF_HOME"] = "huggingface"
    if not _is_writable(caches):
        elsewhere["VLLM_CACHE_ROOT"] = "vllm"
    if not _is_writable(home):
        elsewhere |= {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer"}
    if missing := {name: place for name, place in elsewhere.items() if name not in os.environ}:
        folder = _own_folder()
        os.environ |= {name: str(folder / place) for name, place in missing.items()}


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above it that there is."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _own_folder() -> Path:
    """Return a folder for caches that nobody else can have put there. Raises `OSError`."""
    folder = Path(tempfile.gettempdir()) / f"asyncrl-cache-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="asyncrl-cache-"))


def open_files() -> int:
    """Return how many files each process of a run may have open, once that is as many as it is allowed.

    The limit that a shell gives (1024, for programs that use `select`) is raised to what the system allows, at most
    `WANTED_FILES`. Children inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED_FILES if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _cpu_quotas() -> Iterator[float]:
    for folder in _folders("cpu"):
        if (text := _read(folder / "cpu.max")) is not None:
            quota, _, period = text.partition(" ")
        else:
            quota = _read(folder / "cpu.cfs_quota_us") or "-1"
            period = _read(folder / "cpu.cfs_period_us") or "100000"
        if quota.isdigit() and period.isdigit() and int(period):
            yield max(1.0, int(quota) / int(period))


def _memory_limits() -> Iterator[int]:
    for folder in _folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text is not None and text.isdigit() and int(text) < UNLIMITED_BYTES:
                yield int(text)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this group and of those above it: version 2's, or the controller's of version 1."""
    for line in (_read(OWN_CGROUP) or "").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        root = (
            CGROUPS / names
            if names and (CGROUPS / names).is_dir()
            else CGROUPS / (controller if names else "")
        )
        # In a container the path may be that on its host, which is not here.
        place = root / path.strip("/")
        yield from (folder for folder in (place, *place.parents) if folder.is_relative_to(root))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
