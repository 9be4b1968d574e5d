"""Small files through which the processes of a run find each other.

One holds the address of a service, written atomically and read by whoever started it. Another gives addresses to a
process that was started before the services it calls. A third asks a trainer to stop.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.jsonfile import write_json

POLL_S = 0.05
EVERY_INTERFACE = ("0.0.0.0", "::")
"""What a service listens on that is not bound to one address."""
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737): the way to it is the default one."""


def advertised_host(bound: str, given: str = "") -> str:
    """Return the host that others are told of a service: the one given, else the one it listens on, and for all
    interfaces this machine's address on the default route, or its only one. Raises `ConfigError` without any."""
    if given or bound not in EVERY_INTERFACE:
        return given or bound
    with contextlib.suppress(OSError):
        return route_to(ELSEWHERE)
    own = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    if len(own) == 1:
        return own[0]
    found = f"has the addresses {', '.join(own)}" if own else "has no address that others may reach"
    raise ConfigError(f"--host {bound}: this machine {found}; name one with --advertise")


def route_to(host: str) -> str:
    """Return this machine's address on the way to `host`, which others there can reach. Sends nothing.

    Raises OSError.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_to(host: str) -> str:
    """Return the name of this machine's network interface on the way to `host`. Raises `ConfigError`."""
    try:
        own = route_to(host)
    except OSError as error:
        raise ConfigError(
            f"{host}: this machine has no way there: {error.strerror}; check its name and the network"
        ) from error
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address.partition("%")[0] == own for address in addresses)
    )


def in_url(host: str) -> str:
    """Return a host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def stalled_file(heartbeat: Path) -> Path:
    """Return the file that a trainer's rank leaves beside its heartbeat when it finds that it hangs."""
    return heartbeat.with_suffix(".stalled")


def announce(ready_file: Path, url: str, pid: int) -> None:
    """Write `{"url", "pid"}`. Readers see the whole file or none."""
    write_json(ready_file, {"url": url, "pid": pid})


def announced_url(ready_file: Path) -> str:
    """Return the address, or "" while there is none; a service that ends may remove its file at any moment."""
    try:
        return str(json.loads(ready_file.read_text())["url"])
    except FileNotFoundError:
        return ""


def write_addresses(file: Path, urls: Sequence[str]) -> None:
    """Write the addresses that `wait_for_addresses` waits for."""
    write_json(file, list(urls))


def stop_file(folder: Path) -> Path:
    """Return the file whose presence asks the trainer of a run or policy folder to save a checkpoint and end."""
    return folder / "endpoints" / "trainer.stop"


def wait_for_addresses(words: Sequence[str], timeout_s: float) -> list[str]:
    """Return the given addresses, or for one "@FILE" those that another process will write to FILE.

    Raises `DeadlineError` if the file does not appear within `timeout_s`.
    """
    if not (len(words) == 1 and words[0].startswith("@")):
        return list(words)
    file, deadline = Path(words[0][1:]), time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise DeadlineError(f"no addresses were written to {file} within {timeout_s:g} s")
        time.sleep(POLL_S)
    return [str(url) for url in json.loads(file.read_text())]
