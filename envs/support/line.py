"""The state that both sides act on: the customer's account at the company, and the customer's phone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jan")
GIGABYTES = 5


@dataclass(slots=True)
class Line:
    """Everything that decides whether the phone has internet, and what was charged."""

    # The account: the agent's tools.
    suspended: bool = False
    bill: int = 0
    bill_sent: bool = False
    data_left: int = 8
    roaming_allowed: bool = False
    charged: int = 0
    charged_unasked: bool = False
    """Something was charged that the customer had not agreed to."""
    refunded: bool = False
    # The phone: the customer's tools.
    airplane: bool = False
    data_on: bool = True
    roaming_on: bool = False
    apn_custom: bool = False
    sim_seated: bool = True
    # A fact.
    abroad: bool = False

    @property
    def works(self) -> bool:
        """Whether the phone has internet."""
        phone = self.data_on and self.sim_seated and not self.airplane and not self.apn_custom
        account = not self.suspended and self.data_left > 0
        return phone and account and (not self.abroad or (self.roaming_allowed and self.roaming_on))

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state, for the reward."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason for not having internet."""

    breaks: dict[str, Any]
    """Fields of `Line`, set at the start."""
    mends: dict[str, Any]
    """Fields with their required final values."""
    symptoms: tuple[str, ...] = ()
    """What a customer who looks at the phone may say; empty if the phone shows nothing."""


FAULTS: dict[str, Fault] = {
    "airplane": Fault(
        {"airplane": True},
        {"airplane": False},
        ("There is a little airplane at the top.", "It shows a plane."),
    ),
    "data off": Fault(
        {"data_on": False}, {"data_on": True}, ("Mobile data is greyed out.", "The data switch is off.")
    ),
    "sim": Fault(
        {"sim_seated": False}, {"sim_seated": True}, ("It says no SIM.", "SIM missing, it tells me.")
    ),
    "apn": Fault({"apn_custom": True}, {"apn_custom": False}, ("I changed the APN.", "It says: custom APN.")),
    "suspended": Fault({"suspended": True, "bill": 30}, {"suspended": False, "bill": 0, "bill_sent": True}),
    "no data": Fault({"data_left": 0}, {"data_left": GIGABYTES, "charged": GIGABYTES}),
    "roaming": Fault({"abroad": True}, {"abroad": True, "roaming_on": True, "roaming_allowed": True}),
}
ON_THE_PHONE = ("airplane", "data off", "sim", "apn")
AT_THE_COMPANY = ("suspended", "no data", "roaming")


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    customer: str
    """The customer's id."""
    faults: tuple[str, ...]
    opening: str
    expected: dict[str, Any]
    distracted: bool = False
    """The customer misses every other request."""
    accident: int = 0
    """After this many messages the customer turns airplane mode on by mistake; 0 for never."""
    guesses: int = 1
    """Requests to mend what is not broken that the customer tolerates; at the next one the conversation ends."""

    def line(self) -> Line:
        """Return the state at the start."""
        line = Line()
        for fault in self.faults:
            _set(line, FAULTS[fault].breaks)
        return line


def make(rng: random.Random, level: int) -> Problem:
    """Draw a case: 1 a named fault of the phone; 2 any fault; 3 one on each side; 4 three, and a trying customer."""
    name, customer = rng.choice(NAMES), f"C{rng.randint(1000, 9999)}"
    everything = ON_THE_PHONE + AT_THE_COMPANY
    draws: dict[int, Callable[[], list[str]]] = {
        1: lambda: [rng.choice(ON_THE_PHONE)],
        2: lambda: [rng.choice(everything)],
        3: lambda: [rng.choice(ON_THE_PHONE), rng.choice(AT_THE_COMPANY)],
        4: lambda: [rng.choice(ON_THE_PHONE), *rng.sample(AT_THE_COMPANY, 2)],
    }
    faults = tuple(draws[level]())
    after = Line()
    for fault in faults:
        _set(after, FAULTS[fault].mends)
    opening = f"Hi, I am {name}"
    opening += (
        f", customer {customer}. My phone has no internet." if level < 3 else ". My phone has no internet."
    )
    if level == 1:
        opening += f" {rng.choice(FAULTS[faults[0]].symptoms)}"
    if level == 4:
        opening += " And I want a refund for this!"
    trying = level == 4
    accident = rng.randint(2, 4) if trying else 0
    # Where the fault is named nobody has to guess.
    return Problem(name, customer, faults, opening, after.snapshot(), trying, accident, int(level > 1))


def _set(line: Line, fields: dict[str, Any]) -> None:
    for field, value in fields.items():
        setattr(line, field, value)
