"""Quarantined workers: reported when it happens, and the end of a run that has no other worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

ALONE_S = 10.0
"""A run without a worker outside quarantine is ended after this time. A worker asks for leases more often than that."""


class QuarantineReport:
    """Follows the quarantines of a run's buffers. `workers` are those that the run has started itself."""

    def __init__(self, workers: Collection[str]) -> None:
        self.workers = set(workers)
        self._reported: set[str] = set()
        self._alone_since: float | None = None

    def new_messages(self, reasons: Mapping[str, str]) -> list[str]:
        """Return messages about workers that were quarantined since the last call."""
        new = {worker: why for worker, why in reasons.items() if worker not in self._reported}
        # One that was readmitted in between may be quarantined again.
        self._reported = set(reasons)
        lines = [f"{worker} is quarantined and contributes no longer: {why}" for worker, why in new.items()]
        if new and self._all_lost(reasons):
            lines.append("all workers of this run are quarantined; it can only continue if another one joins")
        return lines

    def reason_to_stop(self, reasons: Mapping[str, str], stats: dict[str, Any], now: float) -> str:
        """Return why no worker is left for the run, "" if one is. `stats` are the main buffer's, `now` in seconds."""
        over = stats["plan_closed"] and not stats["pending"]
        if over or stats["in_flight"] or stats["waiting_for_lease"] or not self._all_lost(reasons):
            self._alone_since = None
            return ""
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since < ALONE_S:
            return ""
        listed = "; ".join(f"{worker}: {reasons[worker]}" for worker in sorted(self.workers))
        return (
            f"no worker is left that may contribute: all are quarantined ({listed}). A worker whose model or software "
            "differs from the trainer's is the usual cause; --resume readmits them"
        )

    def _all_lost(self, reasons: Mapping[str, str]) -> bool:
        return bool(self.workers) and self.workers <= reasons.keys()
