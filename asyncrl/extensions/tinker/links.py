"""Addresses of files that whoever has one may read, for a while."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlencode

from asyncrl.clock import stamp_s
from asyncrl.credentials import Credentials
from asyncrl.errors import InputError

LINK_S = 3600.0
"""How long an address is good for."""
_SIGNED = ("policy", "name", "file", "expires")


class Links:
    """key: with which addresses are signed. They outlive the process, as the key does."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def query(self, policy: str, name: str, file: str, expires: float) -> str:
        """Return what follows the "?" of the address of one file of a checkpoint to download."""
        fields = {"policy": policy, "name": name, "file": file, "expires": str(int(expires))}
        return urlencode({**fields, "signature": self._signature(fields)})

    def check(self, fields: Mapping[str, str]) -> tuple[str, str, str]:
        """Return policy, name and file of an address. Raises `InputError` for one that this server has not made, or
        whose time is over."""
        given = {name: fields.get(name, "") for name in _SIGNED}
        if not hmac.compare_digest(self._signature(given), fields.get("signature", "").encode()):
            raise InputError("signature: this server has made no such address")
        if float(given["expires"]) < stamp_s():
            raise InputError("expires: the time of this address is over; ask for another")
        return given["policy"], given["name"], given["file"]

    def _signature(self, fields: Mapping[str, str]) -> bytes:
        text = "\n".join(f"{len(fields[name])}:{fields[name]}" for name in _SIGNED)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest().encode()


def links_of(credentials: Credentials) -> Links:
    """Return the addresses of a server that was given these credentials."""
    # Whoever may call the server has no key of its own kind; and no caller has such a name.
    key = hmac.new(credentials.keys["tinker"].encode(), b"addresses of files", hashlib.sha256)
    return Links(key.hexdigest())
