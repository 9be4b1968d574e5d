"""Dialogues in which a user's requests are fulfilled by calls (BFCL's multi-turn tasks), judged by bfcl-eval's code.

bfcl-eval pins packages that do not fit beside everything else, so it is in a Python of its own, which `python` names.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.tool_schemas import plain_schema
from asyncrl.errors import EnvironmentFailure, InputError
from asyncrl.helper_process import HelperProcess, few_variables
from asyncrl.types import Message, Task

CHECKS = Path(__file__).with_name("bfcl_checks.py")
DEADLINE_S = 30.0
JUDGED = ("id", "initial_config", "involved_classes", "ground_truth")
"""What bfcl-eval's code reads of a task."""


class MultiTurnCalls(Env):
    """A turn without calls ends the user's request, and the next one follows, as in BFCL.

    `task.data` holds BFCL's fields `question`, `initial_config`, `involved_classes` and `ground_truth`, and perhaps
    `missed_function`. The policy succeeds (reward 1) if after each request the state of all classes is that of the
    right calls, and their results are among those it has got (`multi_turn_checker`). More than 20 turns for one request
    fail. Functions that a task offers later are described in the user's message that offers them, since the tools of a
    conversation stay the same. A turn with a malformed call makes none and ends the request. python: an interpreter
    with bfcl-eval and mpmath; "" for this one.
    """

    def __init__(self, task: Task, python: str = "") -> None:
        super().__init__(task)
        self.checks = checks_of(python)
        self.requests: list[list[Message]] = task.data["question"]
        self.later: dict[str, str] = {}
        self.steps = 0
        self.made: list[list[list[list[Any]]]] = [[]]
        """By request and turn the calls, as `[name, arguments]`."""

    @classmethod
    def check_tasks(cls, tasks: Iterable[Task], python: str = "") -> None:
        """Raise `InputError` for a task of a class that bfcl-eval does not have."""
        for task in tasks:
            asked = {"classes": task.data["involved_classes"], "missed": {}}
            found = json.loads(checks_of(python).ask(asked, DEADLINE_S) or "{}")
            if "refused" in found:
                raise InputError(f"task {task.id!r}: {found['refused']}")

    async def reset(self) -> list[Message]:
        """Show the first request, with the functions of the task's classes."""
        data = self.task.data
        found = await self._ask(
            {"classes": data["involved_classes"], "missed": data.get("missed_function") or {}}
        )
        self.tools = [  # type: ignore[misc]
            {"type": "function", "function": plain_schema(_without_response(one))} for one in found["tools"]
        ]
        self.later, self.steps = found["missed"], found["steps"]
        self.max_turns = len(self.requests) * (self.steps + 1)
        return self._request()

    async def step(self, action: Action) -> Step:
        """Make the turn's calls; without any, go on to the next request, or judge after the last one."""
        if action.tool_calls and not action.parse_errors:
            return await self._call([[call.name, call.arguments] for call in action.tool_calls], action)
        unmade: list[Message] = [
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": "not called"}
            for call in action.tool_calls
        ]
        if len(self.made) < len(self.requests):
            self.made.append([])
            return Step([*unmade, *action.error_messages(), *self._request()])
        verdict = await self._ask({"task": self._task(), "turns": self.made})
        right = bool(verdict["valid"])
        return Step(reward=float(right), done=True, success=right)

    async def _call(self, calls: list[list[Any]], action: Action) -> Step:
        self.made[-1].append(calls)
        if len(self.made[-1]) > self.steps:
            return Step(done=True, success=False, truncated=True)
        made = [step for request in self.made for step in request]
        found = await self._ask({"task": self._task(), "calls": made})
        return Step(
            [
                {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": result}
                for call, result in zip(action.tool_calls, found["results"], strict=True)
            ]
        )

    def _request(self) -> list[Message]:
        number = len(self.made) - 1
        later = self.later.get(str(number))
        return [{"role": "user", "content": later}] if later else list(self.requests[number])

    def _task(self) -> dict[str, Any]:
        return {**{name: self.task.data[name] for name in JUDGED[1:]}, "id": self.task.id}

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            await asyncio.to_thread(self.checks.ask, request, DEADLINE_S) or "{}"
        )
        if not answer or "refused" in answer:
            why = answer.get(
                "refused", f"no answer within {DEADLINE_S:g} s; the error is in this process's log"
            )
            raise EnvironmentFailure(f"task {self.task.id}: bfcl-eval's code: {why}")
        return answer


@functools.cache
def checks_of(python: str) -> HelperProcess:
    """Return the process with BFCL's classes in this interpreter, shared by all episodes."""
    missing = (
        f"BFCL's classes did not start in {python or sys.executable}: install bfcl-eval and mpmath into an environment "
        "of its own, whose interpreter `python` names (docs/evaluation.md)"
    )
    return HelperProcess([python or sys.executable, "-I", str(CHECKS)], missing, few_variables())


def _without_response(function: dict[str, Any]) -> dict[str, Any]:
    """Return the description with the form of the result in its text, where BFCL puts it, too."""
    shown = {key: value for key, value in function.items() if key != "response"}
    if "response" in function:
        form = json.dumps(function["response"])
        shown["description"] = (
            f"{function.get('description', '')} The response field has the following schema: {form}"
        )
    return shown
