"""What a run folder holds for the rules of `diagnosis`."""

from __future__ import annotations

from pathlib import Path

from asyncrl.run.diagnosis import Finding, Observed, diagnose
from asyncrl.run.json_lines import JsonLines
from asyncrl.run.ledger_view import read_ledger


class RunObserver:
    """Reads a run's records as they grow, and what the rules find in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.steps = JsonLines(folder / "metrics.jsonl")
        self.activity = JsonLines(folder / "activity.jsonl")
        self.restarts = JsonLines(folder / "restarts.jsonl")
        self._shown: set[str] = set()

    def findings(self) -> list[Finding]:
        """Return what is wrong with the run as far as it has come."""
        return diagnose(
            Observed(
                steps=self.steps.refresh(),
                activity=self.activity.refresh(),
                failures=read_ledger(self._folder)["failures"],
                restarts=self.restarts.refresh(),
            )
        )

    def new_warnings(self) -> list[Finding]:
        """Return what is wrong, without being merely slow, and was not returned before."""
        found = [f for f in self.findings() if f.kind != "slow" and f.rule not in self._shown]
        self._shown |= {finding.rule for finding in found}
        return found
