"""Makes the HTTP clients of all processes, so that a proxy in the environment stands in nobody's way.

Company clusters set `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY`. Loopback and the run's own services are never called
through one: no proxy reaches them. What is elsewhere, such as a judge's API, is called as the environment says, where
`NO_PROXY` may also name networks (10.0.0.0/8).

aiohttp and `http.client`, with which the run's own services are called, ignore these variables. No other client is made
elsewhere, as `tests/test_http_clients.py` holds.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asyncrl.errors import ConfigError
from asyncrl.tls import client_context

if TYPE_CHECKING:
    from http.client import HTTPResponse

    import httpx

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables that name a proxy, in small or capital letters."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def set_proxies(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that name a proxy, as they are written, and their values without passwords."""
    env = os.environ if env is None else env
    found = {name: env[name] for name in env if name.lower() in PROXIES and env[name].strip()}
    return {name: _without_password(value) for name, value in found.items()}


def goes_direct(url: str, env: Mapping[str, str] | None = None) -> bool:
    """True where an address is called without the environment's proxy: on loopback, or exempt by `NO_PROXY`."""
    env = os.environ if env is None else env
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    if host == "localhost" or host.endswith(".localhost") or (address is not None and _is_own(address)):
        return True
    listed = [one.strip() for name in ("no_proxy", "NO_PROXY") for one in env.get(name, "").split(",")]
    return any(_exempts(one.lower(), host, address, parts.port) for one in listed if one)


def exempt(*hosts: str) -> None:
    """Have this process and those that it starts call loopback and these hosts without a proxy, whatever client a
    library makes. Nothing changes where no proxy is set."""
    if not set_proxies():
        return
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = exempting(os.environ.get(name, ""), *hosts)


def exempting(listed: str, *hosts: str) -> str:
    """Return a `NO_PROXY` that also has loopback and these hosts."""
    known = [one.strip() for one in listed.split(",") if one.strip()]
    return ",".join(dict.fromkeys([*known, *LOOPBACK, *(host for host in hosts if host)]))


def open_url(request: urllib.request.Request | str, timeout_s: float) -> HTTPResponse:
    """Call one of the run's own services, never through a proxy. Raises `OSError`, also for statuses from 400."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if (context := client_context()) is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    answer: HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return answer


def async_client(url: str, **options: Any) -> httpx.AsyncClient:
    """Return a client for what is at `url`. options: httpx's own. Raises `ConfigError` for a proxy it cannot use."""
    import httpx

    try:
        return httpx.AsyncClient(**_options(url, options))
    except (ImportError, ValueError) as error:
        raise _unusable(url, error) from error


def client(url: str, **options: Any) -> httpx.Client:
    """Return a client for what is at `url`, as `async_client`."""
    import httpx

    try:
        return httpx.Client(**_options(url, options))
    except (ImportError, ValueError) as error:
        raise _unusable(url, error) from error


def _options(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if not goes_direct(url):
        return dict(options)
    # Without the environment there is no proxy; its certificates still count.
    found = {"trust_env": False} | dict(options)
    certificates = os.environ.get("SSL_CERT_FILE", "")
    if url.startswith("https:") and certificates and "verify" not in found:
        found["verify"] = ssl.create_default_context(cafile=certificates)
    return found


def _unusable(url: str, error: Exception) -> ConfigError:
    names = ", ".join(f"{name}={value}" for name, value in set_proxies().items())
    # What httpx says of an address quotes it, with its password.
    why = str(error) if isinstance(error, ImportError) else "it is no address of a proxy that can be used"
    return ConfigError(
        f"{url}: cannot be called through {names}: {why}; correct it, or name the host in NO_PROXY"
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _exempts(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None
) -> bool:
    """True where an entry of `NO_PROXY` is for a host: "*", a name with its subdomains, an address or a network."""
    if entry == "*":
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass
    name, _, of_port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
    if of_port and of_port != str(port):
        return False
    name = name.removeprefix("*").removeprefix(".").strip("[]")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _without_password(url: str) -> str:
    head, separator, rest = url.rpartition("@")
    scheme, mark, _ = head.partition("://")
    return f"{scheme}{mark}***@{rest}" if separator and mark else (f"***@{rest}" if separator else url)
