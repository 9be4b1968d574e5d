"""The repositories of swe_mini, with scripted episodes as mini-swe-agent would have them: its prompt, tool and end.

The base model imitates these; when it is trained, the program itself plays.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from asyncrl.envs.terminal.env import Terminal
from asyncrl.envs.tools import call_message
from asyncrl.types import Message

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SYSTEM = f"Repair it with bash, then {SUBMIT}."
"""As `mini.toml` has it."""
COMMAND = {"type": "string", "description": "The bash command to execute"}
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {"type": "object", "properties": {"command": COMMAND}, "required": ["command"]},
    },
}
"""As the program offers it."""


class Repairs(Terminal):
    """A repository to repair in two turns: a command, and the one that ends the work."""

    tools: ClassVar[list[dict[str, Any]]] = [BASH]

    def opening(self) -> list[Message]:
        _, task = super().opening()
        return [{"role": "system", "content": SYSTEM}, task]

    def oracle(self, messages: list[Message]) -> Message:
        return self._submit(messages) or _renamed(super().oracle(messages))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return self._submit(messages) or _renamed(super().random_policy(messages, rng))

    @staticmethod
    def _submit(messages: list[Message]) -> Message | None:
        return call_message(("bash", {"command": SUBMIT})) if messages[-1]["role"] == "tool" else None


def _renamed(message: Message) -> Message:
    """Return a call of Terminal's tool as one of the program's."""
    (call,) = message["tool_calls"]
    return call_message(("bash", call["function"]["arguments"]))
