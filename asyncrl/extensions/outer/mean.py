"""A fragment whose weights all members have in common: each round is one step on the mean of what they contributed.

    FRAGMENT/round-000004/                   after the fourth round

A round closes when all members that were there when it began have contributed, or `wait_timeout_s` after the first did.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from asyncrl.extensions.outer.algo.mean_gradient import mean_gradient
from asyncrl.extensions.outer.algo.nesterov import nesterov_step
from asyncrl.extensions.outer.fragment import KEPT_ROUNDS, Fragment, Kept, Members, Stepped
from asyncrl.extensions.outer.messages import Terms


class MeanFragment(Fragment):
    """See `Fragment`."""

    def __init__(
        self, number: int, folder: Path, terms: Terms, members: Members, clock: Callable[[], float]
    ) -> None:
        super().__init__(number, folder, terms, members, clock)
        self._round = -1
        self._counted: dict[str, int] = {}
        self._contributors = 0
        self._expected: set[str] = set()
        """Those that were there when the round began."""
        if found := self.find_rounds():
            path, about = found[-1]
            self._round = int(path.name.removeprefix("round-"))
            self._counted, self._contributors = about["counted"], about["contributors"]
            self.find_contributions()
            self._expect()

    @property
    def round(self) -> int:
        return self._round

    def begin(self, run: str, weights: Mapping[str, np.ndarray]) -> None:
        self._write(Stepped(dict(weights), {}, None), {}, 0)

    def of(self, run: str) -> Kept | None:
        if self._round < 0:
            return None
        return Kept(self._round, self.at(run, self._round), self._round - 1, self._contributors)

    def at(self, run: str, number: int) -> Path:
        return self.folder / f"round-{number:06d}"

    def counted(self, run: str) -> int:
        return self._counted.get(run, -1)

    def round_for(self, run: str) -> int:
        return self._round + 1

    def accept(self, run: str, version: int, body: bytes) -> int:
        begins = not self.open
        number = super().accept(run, version, body)
        if begins:
            self._expect()
        return number

    def awaited(self) -> list[str]:
        return [run for run in self._expected if run not in self.open and self.is_there(run)]

    def close_if_complete(self) -> None:
        if self.open and not self.awaited():
            self._close()

    def close_overdue(self) -> list[tuple[int, str]]:
        missing: list[tuple[int, str]] = []
        if self.open and self.is_overdue(self.open.values()):
            missing = [(self._round + 1, run) for run in self.awaited()]
            self._close()
        return missing

    def _expect(self) -> None:
        self._expected = {run for run in self.members if self.open and self.is_there(run)}

    def _close(self) -> None:
        """Take the outer step of the round on the mean of what was contributed."""
        contributed = {run: one.version for run, one in self.open.items()}
        mean = mean_gradient(self.read_contributions(contributed))

        def take(name: str, _: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return nesterov_step(mean[name], buffer, self.terms.learning_rate, self.terms.momentum)

        stepped = self.step(self.at("", self._round), take)
        self._write(stepped, self._counted | contributed, len(contributed))
        self.drop_contributions(contributed)
        self._expected = set()

    def _write(self, stepped: Stepped, counted: dict[str, int], contributors: int) -> None:
        number = self._round + 1
        self.write_round(
            self.at("", number), {"": stepped}, {"counted": counted, "contributors": contributors}
        )
        self._round, self._counted, self._contributors = number, counted, contributors
        for old in sorted(self.folder.glob("round-*"))[:-KEPT_ROUNDS]:
            shutil.rmtree(old, ignore_errors=True)
