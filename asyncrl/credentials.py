"""Who may call what: one secret a run, and from it a bearer token for each caller of each kind of service.

    run token K     random, in `runs/NAME/token` with mode 0600; whoever has it may do everything
    service key     HMAC(K, kind): what the run's own services of that kind check their callers' tokens with
    member key      HMAC(service key, member): the same for one process that has joined the run, and for it alone
    bearer token    "CALLER:" + HMAC(service or member key, CALLER): CALLER calls such services with it

A caller is a role and, for workers, a name: `trainer`, `worker/rollout-0`. A process is given its own bearer tokens
and, if it serves, the key of its kind. So neither a worker nor a program beside an environment can call the trainer's
routes or act as another worker. A process that has joined cannot make tokens that others believe, and a token that it
was called with is good for nothing else. The launcher and buffers have the run token; buffers issue credentials to
members that join, and tell the run's processes the tokens to call them with.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

from asyncrl.errors import ConfigError

VARIABLE = "ASYNCRL_TOKEN"
"""Environment variable with the credentials of a process: a run token, or what `Credentials.text` gives."""
RUN_FILE = "token"
JOIN_FILE = "join-token"
"""Files of a run folder: its token, and credentials with which others may join."""
LEAST_CHARS = 16
"""A shorter run token could be guessed."""
_PREFIX = "asyncrl-1."
_CALLS: dict[str, tuple[str, ...]] = {
    "run": (
        *(
            "buffer",
            "engine",
            "env",
            "gateway",
            "monitor",
            "node",
            "old_policy",
            "openenv",
            "outer",
            "reward_model",
            "rollout",
            "swarm",
            "tinker",
        ),
        "weights",
    ),
    "trainer": ("buffer", "engine", "old_policy", "outer", "swarm"),
    "peer": ("swarm",),
    "old_policy": ("buffer",),
    "worker": ("buffer", "engine", "env", "gateway", "reward_model"),
    "gateway": ("engine",),
    "engine": ("buffer", "weights"),
    "env": ("buffer",),
    "openenv": (),
    "replica": (),
    "reward_model": (),
    "judge_engine": (),
    "guest": ("buffer",),
}
"""What each role calls. A `guest` wants to join and asks a buffer for other credentials; an `engine` or `env` tells
buffers that it takes part, and engines fetch weights from trainers and from each other. A `replica` is called by those
who look for the buffer. A `peer` is another run, which shares rollouts and nothing else."""
_SERVES: dict[str, tuple[str, ...]] = {
    "trainer": ("weights",),
    "worker": ("rollout",),
    "gateway": ("gateway",),
    "engine": ("engine", "weights"),
    "env": ("env",),
    "old_policy": ("old_policy",),
    "openenv": ("openenv",),
    "replica": ("buffer",),
    "reward_model": ("reward_model",),
    "judge_engine": ("engine",),
}
_CAPABILITIES = frozenset({"weights"})
"""Kinds whose key lets nobody do more than their bearer token does: to read weights. All engines share this key, since
they fetch from each other."""
JOINS = ("rollout", "engine", "env", "gateway")
"""Roles in which a process may join; a worker may by any join token, the others where it says so."""
_CACHED = 4096


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a role, and for workers the name under which leases are granted."""

    role: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.role}/{quote(self.name, safe='')}" if self.name else self.role


class Access:
    """Identifies a service's callers by the `Authorization` header."""

    def __init__(self, key: str, run_digest: str) -> None:
        self._key, self._run_digest = key, run_digest
        self._known: dict[bytes, Caller] = {}

    def caller(self, authorization: bytes) -> Caller | None:
        """Return who sent the header `Bearer TOKEN`, None for a caller that this service does not know."""
        found = self._known.get(authorization)
        if found is None and (found := self._check(authorization)) is not None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            self._known[authorization] = found
        return found

    def _check(self, authorization: bytes) -> Caller | None:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            return None
        if hmac.compare_digest(hashlib.sha256(token).hexdigest(), self._run_digest):
            return Caller("run")
        head, _, mac = token.partition(b":")
        caller = head.decode("ascii", "replace")
        if not hmac.compare_digest(mac, _mac(self._key, caller).encode()):
            return None
        role, _, name = caller.partition("/")
        return Caller(role, unquote(name))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process may call, and the keys with which it checks its own callers."""

    caller: Caller
    bearers: Mapping[str, str] = field(repr=False)
    keys: Mapping[str, str] = field(repr=False)
    run_digest: str
    """SHA-256 of the run token, by which a service knows it without having it."""
    run_token: str = field(default="", repr=False)
    """Set for the launcher, buffers and processes started by hand."""

    def bearer(self, service: str) -> str:
        """Return the bearer token for services of that kind, "" where this process does not call any."""
        return self.bearers.get(service, "")

    def access(self, service: str) -> Access:
        """Return what a service of that kind checks its callers with. Raises `ConfigError`."""
        if service not in self.keys:
            raise ConfigError(f"these credentials are for {self.caller}, which does not serve as {service}")
        return Access(self.keys[service], self.run_digest)

    def issue(self, role: str, name: str = "", joins: bool = False) -> Credentials:
        """Return the credentials of a process of the run. Needs the run token.

        joins: whether it is one that joins, under a name of its own: it then checks its callers by a key that no other
        process has.
        """
        if not self.run_token:
            raise ConfigError(f"credentials of {self.caller} cannot issue others; give the run's token")
        caller = Caller(role, name)
        bearers = {kind: f"{caller}:{_mac(self.keys[kind], str(caller))}" for kind in _CALLS[role]}
        keys = {
            kind: self._member_key(kind, caller) if joins and kind not in _CAPABILITIES else self.keys[kind]
            for kind in _SERVES.get(role, ())
        }
        return Credentials(caller, bearers, keys, self.run_digest)

    def only(self, *services: str) -> Credentials:
        """Return these credentials as good as for calling services of those kinds alone."""
        return replace(self, bearers={kind: self.bearers[kind] for kind in services}, keys={}, run_token="")

    def bearer_for(self, caller: Caller, service: str, member: Caller) -> str:
        """Return the bearer token with which `caller` calls a process that has joined as `member` and serves as
        `service`; "" for a caller that does not call such services. Needs the run token."""
        if service not in _CALLS.get(caller.role, ()):
            return ""
        return f"{caller}:{_mac(self._member_key(service, member), str(caller))}"

    def _member_key(self, kind: str, member: Caller) -> str:
        # No caller is named like this, so that no key is a token of the key that it is made of.
        return _mac(self.keys[kind], f"member:{member}")

    @property
    def text(self) -> str:
        """These credentials as one line, for an environment variable or a file."""
        if self.run_token:
            return self.run_token
        caller = {"role": self.caller.role, "name": self.caller.name}
        fields = {"caller": caller, "bearers": self.bearers, "keys": self.keys, "run_digest": self.run_digest}
        return _PREFIX + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def read_credentials(text: str, where: str = VARIABLE) -> Credentials:
    """Return what a run token or `Credentials.text` gives. Raises `ConfigError` naming `where`."""
    text = text.strip()
    if text.startswith(_PREFIX):
        try:
            fields = json.loads(base64.urlsafe_b64decode(text.removeprefix(_PREFIX)))
            return Credentials(
                Caller(**fields["caller"]), fields["bearers"], fields["keys"], fields["run_digest"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{where}: holds damaged credentials; copy the whole line") from error
    if len(text) < LEAST_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{where}: must be a run's token, {LEAST_CHARS} or more printable characters without spaces"
        )
    keys = {kind: _mac(text, kind) for kind in _CALLS["run"]}
    bearers = {kind: f"run:{_mac(key, 'run')}" for kind, key in keys.items()}
    return Credentials(Caller("run"), bearers, keys, hashlib.sha256(text.encode()).hexdigest(), text)


def own_credentials() -> Credentials:
    """Return the credentials of this process. Raises `ConfigError` without any."""
    return read_credentials(os.environ.get(VARIABLE, ""))


def run_credentials(folder: Path) -> Credentials:
    """Return the credentials of the run in `folder`: those in the environment, else those stored there, else new
    ones.

    They are stored with mode 0600, beside credentials to join with. Raises `ConfigError`.
    """
    path, given = folder / RUN_FILE, os.environ.get(VARIABLE, "")
    try:
        if not given:
            given = _read_private(path) or secrets.token_hex(32)
        found = read_credentials(given, VARIABLE if VARIABLE in os.environ else str(path))
        if found.run_token:
            write_private(path, found.text)
            write_private(folder / JOIN_FILE, join_credentials(found).text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return found


def join_credentials(credentials: Credentials, roles: Collection[str] = ("rollout",)) -> Credentials:
    """Return credentials with which processes may join in these roles of `JOINS`. Needs the run token.

    Raises `ConfigError` for another role.
    """
    if wrong := sorted(set(roles) - set(JOINS)):
        raise ConfigError(f"--role: must be one of {', '.join(JOINS)}, got {wrong[0]!r}")
    return credentials.issue("guest", ",".join(role for role in JOINS if role in roles))


def may_join(caller: Caller, role: str) -> bool:
    """Return whether this caller may be issued credentials to join in a role."""
    return caller.role == "run" or role in (caller.name or "rollout").split(",")


def stored_credentials(folder: Path) -> Credentials:
    """Return the credentials of the run in `folder` as they are stored there. Raises `ConfigError`."""
    path = folder / RUN_FILE
    try:
        given = _read_private(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not given:
        raise ConfigError(f"{path}: there is none; give the folder of a run")
    return read_credentials(given, str(path))


def role_token(credentials: Credentials, argv: Sequence[str]) -> str:
    """Return the credentials that `asyncrl ARGV` needs, and no more; "" for commands that make or read their own."""
    if argv[0] != "serve" or "--token-file" in argv:
        return ""
    role = argv[1]
    if role == "buffer":
        # It issues credentials to processes that join.
        return credentials.text
    name = argv[argv.index("--name") + 1] if "--name" in argv else role
    return credentials.issue("worker" if role == "rollout" else role, name if role == "rollout" else "").text


def own_token(path: Path) -> Credentials:
    """Return the credentials of a service whose callers have the token in `path`; a new one is made where there is
    none. Raises `ConfigError`."""
    try:
        text = _read_private(path)
        if not text:
            text = secrets.token_hex(32)
            write_private(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return read_credentials(text, str(path))


def share_one_token() -> None:
    """Give this process and its children one run token, unless the environment has one."""
    os.environ.setdefault(VARIABLE, secrets.token_hex(32))


def user_folder() -> Path:
    """Return the folder of the token that all services one user starts by hand share."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "asyncrl"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be made: {error.strerror}; give a token in {VARIABLE}"
        ) from error
    return folder


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
    partial.replace(path)


def _read_private(path: Path) -> str:
    """Return the text of a file that only its owner can read and write, "" without one."""
    try:
        with open(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise ConfigError(f"{path}: is open to other users; remove it, and a new token is made")
            return file.read()
    except FileNotFoundError:
        return ""


def bearer(given: str | None, service: str) -> str:
    """Return the given token; for None the one that this process has for services of that kind, "" without one."""
    text = os.environ.get(VARIABLE, "")
    if given is not None or not text:
        return given or ""
    return read_credentials(text).bearer(service)


def authorization(token: str) -> dict[str, str]:
    """Return the header that carries a bearer token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def allowed(roles: Mapping[str, Collection[str]], method: str, path: str) -> Collection[str]:
    """Return the roles that may call a route: those of "METHOD PATH", else of "PATH", else of ""."""
    found = roles.get(f"{method} {path}")
    return found if found is not None else roles.get(path, roles.get("", ()))


def _mac(key: str, message: str) -> str:
    return hmac.new(key.encode(), message.encode(), hashlib.sha256).hexdigest()
