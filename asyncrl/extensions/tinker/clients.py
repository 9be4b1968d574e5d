"""Who may call: the server's own token, or the keys of a file, each with what its client may have.

[alice]
key = "..."                       # her scripts send it as tml-...
training_clients = 4              # policies at a time
requests_in_flight = 64
trained_tokens_a_day = 2000000    # days begin at 00:00 UTC
sampled_tokens_a_day = 2000000
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from asyncrl.credentials import LEAST_CHARS, Access, Caller, Credentials
from asyncrl.errors import ConfigError

KEY_PREFIX = "tml-"
"""The SDK sends no key that begins otherwise."""
ROLE = "client"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls, and how much it may have; None for any amount. Without a name it is whoever has the server's token,
    and sees everything."""

    name: str = ""
    training_clients: int | None = None
    requests_in_flight: int | None = None
    trained_tokens_a_day: int | None = None
    sampled_tokens_a_day: int | None = None


OWNER = Client()
QUOTAS = tuple(field.name for field in fields(Client) if field.name != "name")


class ClientAccess(Access):
    """Identifies callers by their keys, and others as `Access` does. Raises `ConfigError` for a key that is the token.

    credentials: of the server. clients: by the SHA-256 of their keys.
    """

    def __init__(self, credentials: Credentials, clients: dict[str, Client]) -> None:
        super().__init__(credentials.keys["tinker"], credentials.run_digest)
        self._clients = clients
        self._by_name = {client.name: client for client in clients.values()}
        if (same := clients.get(credentials.run_digest)) is not None:
            raise ConfigError(f"--keys: the key of {same.name} is the server's token; give it one of its own")

    def caller(self, authorization: bytes) -> Caller | None:
        """See `Access`."""
        scheme, _, key = authorization.partition(b" ")
        client = self._clients.get(hashlib.sha256(key).hexdigest()) if scheme.lower() == b"bearer" else None
        return super().caller(authorization) if client is None else Caller(ROLE, client.name)

    def client(self, caller: Caller) -> Client:
        """Return what a caller may have."""
        return self._by_name[caller.name] if caller.role == ROLE else OWNER


def read_keys(path: Path) -> dict[str, Client]:
    """Return a file's clients by the SHA-256 of their keys. Raises `ConfigError`."""
    where = f"--keys {path}"
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise ConfigError(f"{where}: is open to other users; chmod 600 {path}")
            given = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error
    if not given:
        raise ConfigError(f"{where}: names no client; a table [NAME] with a key is one")
    found: dict[str, Client] = {}
    for name, table in given.items():
        key, client = _client(f"{where}: {name}", name, table)
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest in found:
            raise ConfigError(f"{where}: {found[digest].name} and {name} have the same key")
        found[digest] = client
    return found


def _client(where: str, name: str, table: Any) -> tuple[str, Client]:
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table named by letters, digits, dots, dashes, underscores")
    given = dict(table)
    key = given.pop("key", None)
    key = key.removeprefix(KEY_PREFIX) if isinstance(key, str) else ""
    if len(key) < LEAST_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where}.key: must be {LEAST_CHARS} or more printable characters without spaces, such as what "
            "python -c 'import secrets; print(secrets.token_hex(16))' prints"
        )
    if unknown := sorted(given.keys() - set(QUOTAS)):
        raise ConfigError(f"{where}.{unknown[0]}: is no quota; there are {', '.join(QUOTAS)}")
    for quota, most in given.items():
        if not isinstance(most, int) or isinstance(most, bool) or most < 0:
            raise ConfigError(f"{where}.{quota}: must be a whole number from 0, got {most!r}")
    return key, Client(name, **given)


def visible(client: str, owner: str) -> bool:
    """Return whether a client sees what is another's or its own."""
    return client in (OWNER.name, owner)
