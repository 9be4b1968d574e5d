"""A fragment of which each member has weights of its own: in each round it takes its step with one other (NoLoCo).

    FRAGMENT/pairs.json                      the pairs of rounds that are not over
    FRAGMENT/round-000004-RUN/               after the fourth round, of the pair with this run:
        RUN/                                     the weights of each of the two

The first contribution to a round draws its pairs from the members that are there then; an odd one is alone. A pair's
step is taken when both have contributed, whatever the others do, so a member may be a round ahead of another. Who waits
for its partner goes on alone `wait_timeout_s` after it contributed, or when the partner leaves; the partner contributes
to a later round then.

A member that has no weights yet gets those of the lowest-numbered member that is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.extensions.outer.algo.gossip import draw_pairs, gossip_step
from asyncrl.extensions.outer.fragment import KEPT_ROUNDS, Fragment, Kept, Members, Stepped, write
from asyncrl.extensions.outer.messages import Terms
from asyncrl.jsonfile import read_json

PAIRS = "pairs.json"
Partners = dict[str, str]
"""The partners of a round: the other run of a pair by run; "" of one that is alone."""


class PairFragment(Fragment):
    """See `Fragment`."""

    def __init__(
        self, number: int, folder: Path, terms: Terms, members: Members, clock: Callable[[], float]
    ) -> None:
        super().__init__(number, folder, terms, members, clock)
        self._kept: dict[str, list[Kept]] = {}
        """The newest weights of each run, the last ones last."""
        self._counted: dict[str, int] = {}
        self._pairs: dict[int, Partners] = {}
        for path, about in self.find_rounds():
            self._add(path, about)
        drawn: dict[str, Partners] = read_json(folder / PAIRS) or {}
        self._pairs = {int(one): partners for one, partners in drawn.items()}
        self.find_contributions()
        for run in self.open:
            # The process ended before it had drawn the round's pairs.
            if (number := self.round_for(run)) not in self._pairs:
                self._draw(number)

    @property
    def round(self) -> int:
        return max((kept[-1].round for kept in self._kept.values()), default=-1)

    def begin(self, run: str, weights: Mapping[str, np.ndarray]) -> None:
        self._write(0, {run: Stepped(dict(weights), {}, None)}, {}, 0)

    def of(self, run: str) -> Kept | None:
        if run not in self._kept and self._kept:
            there = sorted(self._kept, key=lambda one: (not self.is_there(one), self.members[one]["member"]))
            weights = self.read_weights(self._kept[there[0]][-1].folder)
            self._write(self.round_for(run) - 1, {run: Stepped(weights, {}, None)}, {}, 0)
        return self._kept[run][-1] if run in self._kept else None

    def at(self, run: str, number: int) -> Path:
        found = [one.folder for one in self._kept.get(run, []) if one.round == number]
        return found[0] if found else self.folder / f"round-{number:06d}-{run}" / run

    def counted(self, run: str) -> int:
        return self._counted.get(run, -1)

    def round_for(self, run: str) -> int:
        for number in sorted(self._pairs):
            if self._is_open(number, run):
                return number
        return self._drawn() + 1

    def accept(self, run: str, version: int, body: bytes) -> int:
        number = super().accept(run, version, body)
        if number not in self._pairs:
            self._draw(number)
        return number

    def awaited(self) -> list[str]:
        return sorted({partner for run in self.open if (partner := self._waits_for(run))})

    def close_if_complete(self) -> None:
        for run in list(self.open):
            if run in self.open and not self._waits_for(run):
                self._close(run)

    def close_overdue(self) -> list[tuple[int, str]]:
        missing: list[tuple[int, str]] = []
        for run in list(self.open):
            if run in self.open and self.is_overdue([self.open[run]]):
                # One that waits in an earlier round itself is late, and not lost.
                if (partner := self._waits_for(run)) and partner not in self.open:
                    missing.append((self.round_for(run), partner))
                self._close(run)
        return missing

    def forget(self, run: str) -> None:
        # Its weights stay: it may take its place again.
        if run in self.open:
            self.drop_contributions([run])

    def _drawn(self) -> int:
        """Return the newest round that has been drawn."""
        return max([self.round, *self._pairs])

    def _draw(self, number: int) -> None:
        """Draw the pairs of a round from the members that are there."""
        runs = {one["member"]: run for run, one in self.members.items() if self.is_there(run)}
        self._pairs[number] = {}
        for pair in draw_pairs(runs, self.number, number):
            first, second = runs[pair[0]], runs[pair[-1]]
            alone = len(pair) == 1
            self._pairs[number] |= {first: "" if alone else second, second: "" if alone else first}
        self._keep_pairs()

    def _is_open(self, number: int, run: str) -> bool:
        """True where the pair of a run has not taken its step of a round."""
        partners = self._pairs[number]
        return run in partners and all(self._last(one) < number for one in (run, partners[run]) if one)

    def _last(self, run: str) -> int:
        return self._kept[run][-1].round if run in self._kept else -1

    def _has_contributed(self, run: str, number: int) -> bool:
        return run in self.open and self.round_for(run) == number

    def _waits_for(self, run: str) -> str:
        """Return the partner without which a run that has contributed does not go on; "" for nobody."""
        number = self.round_for(run)
        partner = self._pairs[number][run]
        waits = partner and self.is_there(partner) and not self._has_contributed(partner, number)
        return partner if waits else ""

    def _close(self, run: str) -> None:
        """Take the outer step of a run that has contributed, with its partner if this has."""
        number = self.round_for(run)
        partner = self._pairs[number][run]
        pair = [run, partner] if self._has_contributed(partner, number) else [run]
        gradients = self.read_contributions(pair)
        slow_weights = [self.read_weights(self._kept[one][-1].folder) for one in pair]

        def take(name: str, own: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return gossip_step(
                own,
                [one[name] for one in slow_weights],
                [one[name] for one in gradients],
                buffer,
                self.terms.learning_rate,
                self.terms.momentum,
            )

        stepped = {one: self.step(self._kept[one][-1].folder, take) for one in pair}
        self._write(number, stepped, {one: self.open[one].version for one in pair}, len(pair))
        self.drop_contributions(pair)
        self._keep_pairs()

    def _write(
        self,
        number: int,
        stepped: dict[str, Stepped],
        counted: dict[str, int],
        contributors: int,
    ) -> None:
        path = self.folder / f"round-{number:06d}-{min(stepped)}"
        about = {
            "round": number,
            "counted": counted,
            "contributors": contributors,
            "before": {run: self._last(run) for run in stepped},
            "runs": sorted(stepped),
        }
        self.write_round(path, stepped, about)
        self._add(path, about)
        self._prune()

    def _add(self, path: Path, about: dict[str, Any]) -> None:
        """Have the weights of a round's folder as the newest of their runs."""
        self._counted |= about["counted"]
        for run in about["runs"]:
            one = Kept(about["round"], path / run, about["before"][run], about["contributors"])
            self._kept[run] = [*self._kept.get(run, []), one][-KEPT_ROUNDS:]

    def _prune(self) -> None:
        """Delete the folders of rounds that nobody's newest weights are in."""
        used = {one.folder.parent for kept in self._kept.values() for one in kept}
        for path in self.folder.glob("round-*"):
            if path not in used:
                shutil.rmtree(path, ignore_errors=True)

    def _keep_pairs(self) -> None:
        """Have the pairs on disk; those of rounds that are over for all that are there are dropped."""
        self._pairs = {
            number: partners
            for number, partners in self._pairs.items()
            if any(
                self._is_open(number, run) and (run in self.open or self.is_there(run)) for run in partners
            )
        }
        write(self.folder / PAIRS, json.dumps(self._pairs).encode())
