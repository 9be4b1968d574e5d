"""A machine with one broken part, and the prompt of its simulator."""

from __future__ import annotations

import random
from dataclasses import dataclass

PARTS = (
    "valve",
    "pump",
    "filter",
    "motor",
    "fuse",
    "relay",
    "sensor",
    "belt",
    "coil",
    "switch",
    "gear",
    "fan",
)
PROMPT = """\
You simulate a machine that a mechanic repairs. Its parts pass a signal along in this order.
parts: {parts}
fault: {fault}
The faulty part spoils the signal: measured behind it and behind every later part it is bad, elsewhere it is good.
The mechanic may measure a part, which tells whether the signal behind it is good or bad, or replace a part.
Never say which part is faulty. Whatever else the mechanic writes is not understood.
Reply with a JSON object: "observation", one short sentence for the mechanic; "replaced", the part that the mechanic
has just replaced, or null.
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    parts: tuple[str, ...]
    fault: str
    turns: int

    @property
    def goal(self) -> str:
        return (
            f"A machine is broken. Signal path: {' > '.join(self.parts)}. Find the faulty part and replace it; only "
            'one replacement. Write for example "measure pump" or "replace pump".'
        )

    @property
    def prompt(self) -> str:
        """Return the prompt of the simulator."""
        return PROMPT.format(parts=", ".join(self.parts), fault=self.fault)


def make_scenario(level: int, rng: random.Random) -> Scenario:
    """Return a machine of 2, 4 or 8 parts. It allows as many turns as halving needs, plus the replacement."""
    parts = rng.sample(PARTS, 2**level)
    return Scenario(tuple(parts), rng.choice(parts), level + 1)
