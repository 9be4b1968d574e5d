"""Quarantined workers: said when it happens, and the end of a run that nobody else works for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

ALONE_S = 10.0
"""How long nobody may work for a run, beside the workers in quarantine, before it is ended. A worker that waits for a
lease asks more often than that."""


class QuarantineReport:
    """Follows the quarantines of a run's buffers. `workers` are those the run has started itself."""

    def __init__(self, workers: Collection[str]) -> None:
        self.workers = set(workers)
        self._told: set[str] = set()
        self._alone_since: float | None = None

    def news(self, reasons: Mapping[str, str]) -> list[str]:
        """Return what is to be said of workers that came into quarantine."""
        new = {worker: why for worker, why in reasons.items() if worker not in self._told}
        self._told |= new.keys()
        lines = [f"{worker} is quarantined and contributes no more: {why}" for worker, why in new.items()]
        if new and self._all_lost(reasons):
            lines.append(
                "no worker of this run may contribute any more; only one that joins can keep it going"
            )
        return lines

    def hopeless(self, reasons: Mapping[str, str], stats: dict[str, Any], now: float) -> str:
        """Return why nobody is left to work for the run, or "". `stats` are the main buffer's, `now` in seconds."""
        over = stats["plan_closed"] and not stats["pending"]
        if over or stats["in_flight"] or stats["waiting_for_lease"] or not self._all_lost(reasons):
            self._alone_since = None
            return ""
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since < ALONE_S:
            return ""
        told = "; ".join(f"{worker}: {reasons[worker]}" for worker in sorted(self.workers))
        return (
            f"no worker is left that may contribute: all are quarantined ({told}). A worker whose model or software "
            "differs from the trainer's is the usual cause; --resume lets them contribute again"
        )

    def _all_lost(self, reasons: Mapping[str, str]) -> bool:
        return bool(self.workers) and self.workers <= reasons.keys()
