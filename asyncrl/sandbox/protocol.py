"""The interface of all sandboxes for untrusted code: what they are given and what they return.

    async with await open_sandbox("auto", SandboxSpec(language="python")) as box:   # asyncrl.sandbox.backends
        result = await box.exec(code="print(6 * 7)", timeout_s=5)
        assert result.ok and result.stdout == b"42\\n"

A sandbox is one session: a private, size-limited folder at `WORKDIR` that lives from `start` to `stop`, and any
number of `exec` and `open_process` calls that share it. Nothing outlives `stop`; only files outlive an `exec`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Self

from asyncrl.errors import ConfigError

WORKDIR = "/work"
"""The session's folder as programs inside see it; also their home and current directory."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one session. Each applies to everything the session runs, unless it says otherwise."""

    wall_s: float = 10.0
    """Deadline of one `exec` that does not set its own `timeout_s`."""
    cpu_s: int = 10
    """CPU seconds of one process."""
    memory_bytes: int = 512 * MIB
    """Resident memory of all processes together."""
    address_space_bytes: int = 1024 * MIB
    """Virtual memory of one process; 0 for no limit (Node and the JVM reserve far more than they use)."""
    processes: int = 32
    """Processes and threads alive at once."""
    open_files: int = 64
    """File descriptors of one process."""
    file_bytes: int = 16 * MIB
    """Size of one file."""
    disk_bytes: int = 64 * MIB
    """All writable space: `WORKDIR`, /tmp and /dev/shm together."""
    output_bytes: int = MIB
    """Bytes kept of stdout and of stderr, each, for an `exec` that does not set its own limit."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0 if name == "address_space_bytes" else 1e-3 if name == "wall_s" else 1
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"sandbox limit {name} must be a number >= {least:g}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host file or folder mounted inside."""

    source: str
    """Absolute path on the host. Must exist when the sandbox starts."""
    target: str
    """Absolute path inside."""
    writable: bool = False
    """Writes reach the host and are not counted against any quota. Only a dedicated scratch folder should be
    writable."""

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            path = getattr(self, name)
            if not path.startswith("/") or ".." in path.split("/"):
                raise ConfigError(f"sandbox mount {name} must be an absolute path without '..', got {path!r}")


@dataclass(frozen=True, slots=True)
class RootFiles:
    """A root file system that programs see, read-only, in the place of the host's programs."""

    layers: tuple[tuple[str, tuple[str, ...]], ...]
    """Pairs of a path inside and of folders on the host, each laid over the one before; two or more for each path. The
    first path is `/`."""
    workdir: str
    """Absolute path inside where the session's folder is seen, too; a folder of the layers."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a session may do and what it can run."""

    language: str = "python"
    """Default language profile of `exec(code=...)`; a name in languages.toml."""
    limits: Limits | None = None
    """None takes the language profile's limits."""
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables inside, on top of PATH, HOME and LANG. Nothing of the host's environment enters."""
    allow_hosts: tuple[str, ...] = ()
    """Network: empty for none at all; otherwise `host` or `host:port` entries reachable through an HTTP(S) proxy."""
    judge_hosts: tuple[str, ...] | None = None
    """The same for programs of the session's judge, which reach no others then; None for `allow_hosts`."""
    preload: tuple[str, ...] = ()
    """Python modules a warm interpreter imports once (zygote backend); other backends ignore it."""
    image: str = ""
    """Container image or remote template, for backends that use one; empty for the backend's default."""
    root: RootFiles | None = None
    """What it shows programs in place of the host's programs and libraries; None for these."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one program ended."""

    returncode: int
    """Exit status; 128 + signal number if a signal killed it."""
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    """Killed by the deadline."""
    out_of_memory: bool = False
    """Killed because the session held more than `memory_bytes`."""
    truncated: bool = False
    """stdout or stderr was longer than the limit; the first `max_output_bytes` were kept."""
    wall_s: float = 0.0
    phase: str = "run"
    """"compile" when `exec(code=...)` ended there, else "run"."""

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not (self.timed_out or self.out_of_memory)

    @property
    def text(self) -> str:
        """stdout as text, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")


class ReadEnd(StrEnum):
    """Why `SandboxProcess.read_until` returned."""

    MARKER = "marker"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class ReadResult:
    data: bytes
    """The data taken from the stream; ends with the marker if `end` is MARKER."""
    end: ReadEnd


class SandboxProcess(abc.ABC):
    """A program that keeps running between calls, such as a shell. stderr is merged into stdout."""

    @abc.abstractmethod
    async def send(self, data: bytes, timeout_s: float = 10.0) -> None:
        """Write to its stdin. Raises `DeadlineError` if it does not read, `ConflictError` if it has ended."""

    @abc.abstractmethod
    async def read_until(self, marker: bytes, timeout_s: float, max_bytes: int | None = None) -> ReadResult:
        """Take output up to and including `marker`, or all there is at the deadline, end or limit."""

    @abc.abstractmethod
    async def wait(self, timeout_s: float) -> int:
        """Wait for its end and return its exit status. Raises `DeadlineError`."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """Kill it and everything it started. Idempotent."""


class Guarantee(StrEnum):
    """What a backend promises about hostile code. `asyncrl sandbox check` attacks each of them."""

    NETWORK = "network"
    """No connections to the outside."""
    HOST_FILES = "host-files"
    """On the host only system programs and libraries are readable; nothing is writable."""
    HOST_SECRETS = "host-secrets"
    """Neither the host's environment variables nor its processes' are readable."""
    HOST_PROCESSES = "host-processes"
    """No process outside can be signalled or traced."""
    PROCESS_LIMIT = "process-limit"
    MEMORY_LIMIT = "memory-limit"
    DISK_LIMIT = "disk-limit"
    TIME_LIMIT = "time-limit"
    OUTPUT_LIMIT = "output-limit"
    KERNEL_SURFACE = "kernel-surface"
    """Rarely needed system calls (namespaces, mounts, tracing, bpf, io_uring ...) are refused."""
    NO_LEFTOVERS = "no-leftovers"
    """Every process is gone after `exec`, detached ones too."""
    FRESH_UID = "fresh-uid"
    """Each session runs under a user id that owns nothing else on the host."""
    HOST_KERNEL = "host-kernel"
    """System calls do not reach the host's kernel directly (a userspace kernel or another machine)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend works on this machine."""

    backend: str
    works: bool
    reason: str = ""
    """Why it does not work, and what to install or change."""
    missing: tuple[Guarantee, ...] = ()
    """Guarantees it cannot give here."""


class Sandbox(abc.ABC):
    """One session. Single use: create, `start`, anything, `stop`. `async with` stops it.

    Calls may run concurrently; they share the files and the limits. Every call has a deadline. Failures of the
    sandbox raise `InfrastructureError` and never look like the program's own failure.
    """

    name: ClassVar[str]
    """As in the configuration."""
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset()
    """What it guarantees where it works fully; `probe` says what is missing here."""
    renews: ClassVar[bool] = False
    """Whether `renew` can give another session."""

    @classmethod
    @abc.abstractmethod
    async def probe(cls) -> Probe:
        """Try it for real, once, within seconds. Never raises."""

    @abc.abstractmethod
    async def start(self, spec: SandboxSpec) -> None:
        """Start the session. Raises `ConfigError` for a spec it cannot fulfil, `UnavailableError` if full."""

    @abc.abstractmethod
    async def exec(
        self,
        argv: Sequence[str] | None = None,
        *,
        code: str | None = None,
        language: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKDIR,
    ) -> ExecResult:
        """Run a program (`argv`) or a source text (`code`, in `language` or the spec's) to its end.

        `code` is written to the profile's file in `WORKDIR`, compiled if the language needs it, and run. A compiler's
        failure is returned with `phase="compile"`. To run one program on many inputs, `build` it once. If the
        session's own programs prevent the start (a full disk, an inaccessible folder, all processes in use), the
        result has status 126; nothing is raised. `timeout_s` defaults to the limits' `wall_s` and bounds each phase.
        `cwd` lies under `WORKDIR`.
        """

    @abc.abstractmethod
    async def build(self, code: str, language: str | None = None) -> tuple[ExecResult, tuple[str, ...]]:
        """Write and compile `code`; return the compiler's result and the argv that runs the program."""

    @abc.abstractmethod
    async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
        """Contents of a regular file below `WORKDIR` (relative, or absolute starting with it).

        Raises `InputError` for a path that leaves it, passes through a symbolic link, is not a regular file, does not
        exist or is longer than `max_bytes`.
        """

    @abc.abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file below `WORKDIR`, and the folders it needs. Raises `InputError` as `read` does."""

    @abc.abstractmethod
    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = WORKDIR
    ) -> SandboxProcess:
        """Start a program that keeps running until it ends, `kill` or `stop`."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End every process and remove every file of the session. Idempotent; safe after a failed `start`."""

    async def renew(self) -> Sandbox | None:
        """End this session and return one as new with the same spec, which takes over what was slow to start.

        None where that cannot be done, which leaves the session to `stop`. Who holds this one cannot reach the other.
        """
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
