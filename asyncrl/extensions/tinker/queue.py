"""Which request for training is next: of the owners in turn, each owner's in the order of their numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.tables import CREATE, UNLOAD, UNLOADING, Request


class Queue:
    """Requests that are written down and not carried out yet."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._reached: dict[str, int] = {}
        """By policy, the newest request that was carried out."""
        self._waiting: OrderedDict[str, dict[int, Request]] = OrderedDict()
        """By owner, the requests to be carried out, by their numbers. The first owner is next."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.setdefault(request.owner, {})[request.number] = request

    def next(self) -> Request | None:
        """Take the next request. None while none may be carried out."""
        for owner in list(self._waiting):
            requests = self._waiting[owner]
            self._waiting.move_to_end(owner)
            if (request := self._ready(owner, requests)) is not None:
                del requests[request.number]
                if not requests:
                    del self._waiting[owner]
                return request
        return None

    def _ready(self, owner: str, waiting: Mapping[int, Request]) -> Request | None:
        """Return the request of an owner that may be carried out now."""
        first = next(iter(waiting.values()), None)
        if first is None or first.kind == CREATE:
            return first
        if first.kind == UNLOAD:
            # After what the policy was asked before.
            policy = owner.removesuffix(UNLOADING)
            return None if self._ready(policy, self._waiting.get(policy, {})) is not None else first
        return waiting.get(self._last(owner, first) + 1)

    def _last(self, policy: str, first: Request) -> int:
        """Return the newest request of a policy that was carried out: by its state file, or by later answers. Of one
        that is forgotten, any of its requests, which is to be refused, is next."""
        if policy not in self._reached:
            record = self.ledger.policy(policy)
            if record is None:
                return first.number - 1
            reached = record.applied
            for request in self.ledger.after(policy, reached):
                if request.number != reached + 1 or request.answer is None:
                    break
                reached = request.number
            self._reached[policy] = reached
        return self._reached[policy]

    def done(self, request: Request) -> None:
        """A request has been carried out."""
        if request.kind not in (CREATE, UNLOAD):
            self._reached[request.owner] = request.number

    def drop(self, policy: str) -> None:
        """A policy is no more, nor what waits for it."""
        self._reached.pop(policy, None)
        self._waiting.pop(policy, None)
