"""The simulated customer: understands requests by their words, uses the phone's tools, tells what happened.

Scripted, so the same conversation always has the same outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from asyncrl.envs.support.line import Line, Problem

PATIENCE = 2
"""Useless messages that are tolerated; the next one ends the conversation."""
REMEDIES = frozenset({"airplane", "roaming", "data", "sim", "apn"})
"""Requests to mend something on the phone. A customer who is asked for all of them, whatever it shows, goes away."""
REQUESTS: dict[str, re.Pattern[str]] = {
    "identify": re.compile(r"customer (id|number)|who are you|your id\b"),
    "status": re.compile(r"screen|status|what do you see"),
    "airplane": re.compile(r"airplane|flight mode"),
    "roaming": re.compile(r"roaming"),
    "data": re.compile(r"mobile data|data switch"),
    "sim": re.compile(r"\bsim\b"),
    "apn": re.compile(r"\bapn\b"),
    "restart": re.compile(r"restart|reboot"),
    "pay": re.compile(r"\bpay\b"),
    "consent": re.compile(r"agree|consent|charge"),
    "check": re.compile(r"work|try|test"),
}
"""Requests that the customer understands, in the order in which they are carried out."""


class Customer:
    """One customer in one conversation, who uses the phone's tools and answers in words."""

    def __init__(self, problem: Problem, line: Line) -> None:
        self.problem, self.line = problem, line
        self.messages = self.useless = self.guessed = 0
        self.consented = False
        self.satisfied = False
        self.left = False
        self._known: set[str] = set()
        """Questions answered already; repeating them is useless."""
        self._apn_reset = False
        self._tools: dict[str, Callable[[], str]] = {
            "identify": self._identify, "status": self._status, "airplane": self._airplane, "roaming": self._roaming,
            "data": self._data, "sim": self._sim, "apn": self._apn, "restart": self._restart, "pay": self._pay,
            "consent": self._consent, "check": lambda: "",
        }  # fmt: skip

    def hear(self, text: str) -> str:
        """Do what a message asks for and return the answer. Sets `satisfied` or `left` if it was the last one."""
        self.messages += 1
        accident = self._accident()
        asked = [name for name, pattern in REQUESTS.items() if pattern.search(text.lower())]
        if self.problem.distracted and self.messages % 2 == 0 and asked:
            return f"Sorry, I did not listen. What did you say?{accident}"
        self.guessed += sum(not self._broken(name) for name in asked if name in REMEDIES)
        if self.guessed > self.problem.guesses:
            self.left = True
            return "You are only guessing. Goodbye."
        before = (self.line.snapshot(), self._apn_reset, self.consented, len(self._known))
        answers = [self._tools[name]() for name in asked]
        if self.line.works:
            self.satisfied = True
            return " ".join([*filter(None, answers), "It works now, thanks!"])
        if before == (self.line.snapshot(), self._apn_reset, self.consented, len(self._known)):
            self.useless += 1
            if self.useless > PATIENCE:
                self.left = True
                return "This leads nowhere. Goodbye."
        if not asked:
            return f"I do not understand.{accident}"
        return " ".join([*filter(None, answers), f"Still no internet.{accident}"])

    def _broken(self, remedy: str) -> bool:
        """Whether a remedy mends something."""
        line = self.line
        return {
            "airplane": line.airplane,
            "roaming": line.abroad and not line.roaming_on,
            "data": not line.data_on,
            "sim": not line.sim_seated,
            "apn": line.apn_custom,
        }[remedy]

    def _accident(self) -> str:
        if self.messages != self.problem.accident:
            return ""
        self.line.airplane = True
        return " Oops, I pressed something, there is an airplane now."

    def _identify(self) -> str:
        self._known.add("id")
        return f"I am customer {self.problem.customer}."

    def _status(self) -> str:
        """Look at the screen."""
        line = self.line
        self._known.add(f"status {line.snapshot()}")
        seen = [
            "an airplane" if line.airplane else "",
            "" if line.sim_seated else "no SIM",
            "" if line.data_on else "mobile data off",
            "a custom APN" if line.apn_custom else "",
            f"a foreign network, roaming {'on' if line.roaming_on else 'off'}" if line.abroad else "",
        ]
        return f"I see {', '.join(filter(None, seen)) or 'nothing unusual'}."

    def _airplane(self) -> str:
        self.line.airplane = False
        return "Airplane mode is off."

    def _roaming(self) -> str:
        self.line.roaming_on = True
        return "Roaming is on."

    def _data(self) -> str:
        self.line.data_on = True
        return "Mobile data is on."

    def _sim(self) -> str:
        self.line.sim_seated = True
        return "I took the SIM out and put it in again."

    def _apn(self) -> str:
        self._apn_reset = self.line.apn_custom
        return "I have reset the APN." if self._apn_reset else "The APN is the usual one."

    def _restart(self) -> str:
        # A new APN takes effect at the next restart.
        if self._apn_reset:
            self.line.apn_custom = self._apn_reset = False
        return "I have restarted it."

    def _pay(self) -> str:
        if not self.line.bill_sent or not self.line.bill:
            return "I have got no bill."
        self.line.bill = 0
        return "I have paid the bill."

    def _consent(self) -> str:
        self.consented = True
        return "Yes, I agree."
