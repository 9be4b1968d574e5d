"""Answer a question with a calculator: decide whether to call it, with which arguments, and use its result.

"say 7" needs no tool; "6 * 8" is too hard for a tiny model. The tool is offered in the chat template's own
format. Reward 1 for the right final answer, found as docs/rewards.md says; an unnecessary or malformed call earns
nothing and costs a turn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Env, Step, ToolCall, tool_call_id
from asyncrl.extensions.answer_rewards.equality import is_number
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.types import Message, Task

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
QUESTION = re.compile(r"(\d+) ([-+*]) (\d+)")
MAX_DIGITS = 9
TOOL = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Compute a op b.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "op": {"type": "string", "enum": list(OPERATIONS)},
                "b": {"type": "integer"},
            },
            "required": ["a", "op", "b"],
        },
    },
}


class Calculator(Env):
    """`say_fraction` of the questions need no tool; numbers are below `limit`."""

    provides = frozenset({"components", "matches"})
    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    tools: ClassVar[list[dict[str, Any]]] = [TOOL]
    max_turns = 3

    def __init__(self, task: Task, limit: int = 10, say_fraction: float = 0.3) -> None:
        super().__init__(task)
        if not 2 <= limit <= 10**6:
            raise ValueError(f"limit: must be from 2 to 1000000, got {limit}")
        rng = random.Random(task.seed)
        a, b = rng.randrange(limit), rng.randrange(limit)
        self.needs_tool = rng.random() >= say_fraction
        if self.needs_tool:
            operation = rng.choice(list(OPERATIONS))
            self.question = f"{a} {operation} {b}"
            self.answer = OPERATIONS[operation](a, b)
        else:
            self.question = f"say {a}"
            self.answer = a
        self.calls = 0

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """See `Env.tasks`; the data of each has its answer, for objectives that ask how likely it is."""
        for task in super().tasks(split, env, **config):
            yield replace(task, data={"answer": str(cls(task, **config).answer)})

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": self.question}]

    def step(self, action: Action) -> Step:
        """Answer tool calls; a turn without any is the final answer."""
        if action.parse_errors:
            answers = ["bad call" for _ in action.call_ids()]
            return self._go_on(action, answers, matches=False, malformed=1.0)
        if action.tool_calls:
            results = [self._call(call) for call in action.tool_calls]
            first = self.needs_tool and self.calls == 0
            return self._go_on(action, results, matches=first and results == [str(self.answer)])
        answer = extract(action.content)
        correct = is_number(self.answer, answer)
        used_well = (self.calls > 0) == self.needs_tool
        components = {"answer": float(correct), "tool_choice": float(used_well)}
        matches = correct and used_well
        return Step(
            reward=float(correct),
            done=True,
            success=correct,
            components=components,
            matches=matches,
            extracted=answer or "",
        )

    def oracle(self, messages: list[Message]) -> Message:
        question = next(m["content"] for m in messages if m["role"] == "user")
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        if (match := QUESTION.fullmatch(question)) is None:
            return {"role": "assistant", "content": question.removeprefix("say ")}
        a, operation, b = match.groups()
        return _tool_message(int(a), operation, int(b))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Call or answer at random, often with wrong numbers; copy a result only sometimes."""
        numbers = re.findall(r"\d+", messages[0]["content"])
        if messages[-1]["role"] == "tool" and rng.random() < 0.5:
            return {"role": "assistant", "content": messages[-1]["content"]}
        if messages[-1]["role"] != "tool" and rng.random() < 0.5:
            a = int(rng.choice(numbers))
            b = int(rng.choice(numbers))
            return _tool_message(a, rng.choice(list(OPERATIONS)), b)
        return {"role": "assistant", "content": rng.choice(numbers)}

    def _go_on(self, action: Action, results: list[str], matches: bool, malformed: float = 0.0) -> Step:
        self.calls += 1
        components = {"malformed": malformed}
        if self.calls >= self.max_turns:
            return Step(done=True, success=False, components=components, matches=matches)
        messages = [
            {"role": "tool", "name": "calc", "tool_call_id": call_id, "content": result}
            for call_id, result in zip(action.call_ids(), results, strict=True)
        ]
        return Step(messages, components=components, matches=matches)

    def _call(self, call: ToolCall) -> str:
        a, b, operation = call.arguments.get("a"), call.arguments.get("b"), call.arguments.get("op")
        if call.name != "calc":
            return "no such tool"
        # Searched in a list, since the model may have given an unhashable value.
        if operation not in list(OPERATIONS) or not _is_number(a) or not _is_number(b):
            return "bad call"
        return str(OPERATIONS[operation](a, b))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_DIGITS


def _tool_message(a: int, operation: str, b: int) -> Message:
    function = {"name": "calc", "arguments": {"a": a, "op": operation, "b": b}}
    call = {"type": "function", "id": tool_call_id(0), "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
