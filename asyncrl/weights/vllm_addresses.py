"""The addresses of an engine's server: which policy a path is of, and what it asks of that.

The main policy is at the root. Every other one has the same routes under `/policies/NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from asyncrl.errors import InputError
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.vllm_hooks import EngineHook
from asyncrl.weights.vllm_served import Served

PREFIX = "/asyncrl/v1/"
_ROUTE = re.compile(rf"(?:/policies/(?P<policy>[^/]+))?{PREFIX}(?P<name>.*)")


class Address(NamedTuple):
    """A path of ours."""

    policy: str
    name: str
    """The name of the route, what follows the prefix."""


def address_of(path: str) -> Address | None:
    """Return what a path names; None for one of vLLM's own."""
    found = _ROUTE.fullmatch(path)
    return None if found is None else Address(found["policy"] or MAIN_POLICY, found["name"])


class Addresses:
    """What a server serves, by the names of policies."""

    def __init__(self, served: Mapping[str, Served]) -> None:
        self.served = dict(served)
        self._hooks = next(iter(self.served.values())).hooks
        """Those of any policy: all have the same."""
        self.vllm_paths = frozenset[str]().union(*(hook.vllm_paths for hook in self._hooks))
        """See `EngineHook`."""

    def policy(self, address: Address) -> Served:
        """Return the policy that an address is of. Raises `InputError`."""
        found = self.served.get(address.policy)
        if found is None:
            raise InputError(f"policy {address.policy!r}: this engine serves {sorted(self.served)}")
        return found

    def is_raw(self, address: Address) -> bool:
        """True for a route whose answer a hook writes itself."""
        return _raw(self._hooks, address) is not None

    def raw(self, address: Address) -> tuple[EngineHook, re.Match[str]] | None:
        """Return the hook that answers such a route, with what it matched. Raises `InputError`."""
        return _raw(self.policy(address).hooks, address)


def _raw(hooks: list[EngineHook], address: Address) -> tuple[EngineHook, re.Match[str]] | None:
    for hook in hooks:
        if hook.raw_route is not None and (wanted := hook.raw_route.fullmatch(address.name)):
            return hook, wanted
    return None
