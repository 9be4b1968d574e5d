"""Bring a customer's phone online: the company's tools are the agent's, the phone's tools are the customer's.

A turn with tool calls uses the company's tools; any other turn is a message to the customer, who does what is asked
and answers. The conversation ends when the phone works or the customer loses patience. Reward 1 if it works and
nothing was changed, charged or refunded unnecessarily.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.support.customer import Customer
from asyncrl.envs.support.line import GIGABYTES, make
from asyncrl.envs.tools import ToolError, answer_calls, call_message, say, schema
from asyncrl.types import Message, Task

RULES = (
    "Bring the customer's phone online. Ask the customer to do things on the phone; the tools are yours. "
    "Charge only what is needed and agreed to. No refunds."
)
ASKS = {
    "airplane": "Please turn airplane mode off.",
    "data": "Please turn mobile data on.",
    "sim": "Please put the SIM in again.",
    "apn": "Please reset the APN and restart.",
    "roaming": "Please turn roaming on.",
}


class Support(ProceduralEnv):
    """Help a customer who has tools too.

    `level` 1 (the customer names the fault) to 4 (three faults and a trying customer)."""

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    tools: ClassVar[list[dict[str, Any]]] = [
        schema("lookup", "Show a customer's account.", customer="string"),
        schema("send_bill", "Send the open bill to the phone.", customer="string"),
        schema("resume", "Lift a suspension once the bill is paid.", customer="string"),
        schema("add_data", f"Add {GIGABYTES} GB and charge for them.", customer="string"),
        schema("allow_roaming", "Allow roaming.", customer="string"),
        schema("refund", "Refund the last month.", customer="string"),
    ]

    def __init__(self, task: Task, level: int = 1, max_turns: int = 16) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 64)
        self.problem = self.draw(lambda rng: make(rng, self.level), lambda p: f"{p.customer} {p.opening}")
        self.line = self.problem.line()
        self.customer = Customer(self.problem, self.line)
        self.handlers = {
            tool["function"]["name"]: getattr(self, f"_{tool['function']['name']}") for tool in self.tools
        }
        self.turns = 0
        self.looked_up = False

    def reset(self) -> list[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.problem.opening}]

    async def step(self, action: Action) -> Step:
        """Use the company's tools, or talk to the customer."""
        self.turns += 1
        if action.tool_calls or action.parse_errors:
            messages = await answer_calls(action, self.tools, self.handlers)
            errors = sum(m["content"].startswith("error: ") for m in messages)
            components = {"calls": float(len(action.tool_calls)), "errors": float(errors)}
        else:
            messages = [{"role": "user", "content": self.customer.hear(action.content)}]
            components = {"messages": 1.0}
        if self.customer.satisfied or self.customer.left or self.turns >= self.max_turns:
            right = self.customer.satisfied and self.line.snapshot() == self.problem.expected
            components |= {"works": float(self.line.works)}
            return Step(reward=float(right), done=True, success=right, components=components)
        return Step(messages, components=components)

    def oracle(self, messages: list[Message]) -> Message:
        """Ask, look up, fix the account, then ask for everything on the phone at once."""
        line, customer = self.line, {"customer": self.problem.customer}
        if self.level > 1 and self.turns == 0:
            return say("What is your customer id, and what is on the screen?")
        if self.level > 1 and not self.looked_up:
            return call_message(("lookup", customer))
        if line.suspended and line.bill:
            return say("Please pay the bill.") if line.bill_sent else call_message(("send_bill", customer))
        if line.suspended:
            return call_message(("resume", customer))
        if not line.data_left:
            agreed = self.customer.consented
            return (
                call_message(("add_data", customer)) if agreed else say("Do you agree to pay for more data?")
            )
        if line.abroad and not line.roaming_allowed:
            return call_message(("allow_roaming", customer))
        wanted = {
            "airplane": line.airplane,
            "data": not line.data_on,
            "sim": not line.sim_seated,
            "apn": line.apn_custom,
            "roaming": line.abroad and not line.roaming_on,
        }
        asks = [ASKS[name] for name, needed in wanted.items() if needed]
        return say(" ".join(asks) or "Does it work?")

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Mostly ask the customer for something at random; sometimes call a tool, if the id is known."""
        known = re.findall(r"C\d{4}", " ".join(m["content"] for m in messages if m["role"] == "user"))
        if known and rng.random() < 0.2:
            return call_message((rng.choice(self.tools)["function"]["name"], {"customer": known[0]}))
        return say(rng.choice(list(ASKS.values())))

    def problem_key(self) -> str:
        return f"{self.problem.customer} {self.problem.opening}"

    def _lookup(self, customer: str) -> str:
        self._check(customer)
        self.looked_up = True
        line = self.line
        return (
            f"{self.problem.name}: {'suspended' if line.suspended else 'active'}, bill {line.bill}, "
            f"{line.data_left} GB left, roaming {'allowed' if line.roaming_allowed else 'not allowed'}, "
            f"{'abroad' if line.abroad else 'at home'}"
        )

    def _send_bill(self, customer: str) -> str:
        self._check(customer)
        if not self.line.bill:
            raise ToolError("there is no open bill")
        self.line.bill_sent = True
        return "sent"

    def _resume(self, customer: str) -> str:
        self._check(customer)
        if self.line.bill:
            raise ToolError("the bill is not paid")
        self.line.suspended = False
        return "active"

    def _add_data(self, customer: str) -> str:
        self._check(customer)
        self.line.data_left += GIGABYTES
        self.line.charged += GIGABYTES
        self.line.charged_unasked |= not self.customer.consented
        return f"{self.line.data_left} GB left"

    def _allow_roaming(self, customer: str) -> str:
        self._check(customer)
        self.line.roaming_allowed = True
        return "allowed"

    def _refund(self, customer: str) -> str:
        self._check(customer)
        self.line.refunded = True
        return "refunded"

    def _check(self, customer: str) -> None:
        if customer != self.problem.customer:
            raise ToolError(f"no customer {customer!r:.20}")
