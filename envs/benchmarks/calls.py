"""Function calls to make, compared with those that are right (BFCL: simple, multiple, parallel, irrelevance)."""

from __future__ import annotations

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.envs.benchmarks.call_checks import same_calls
from asyncrl.types import Message, Task


class Calls(Env):
    """One turn; `task.data` holds `messages`, `tools` (JSON schemas) and `answers` (`call_checks`).

    The calls must be those of the answers, in any order; without answers there must be none.
    """

    max_turns = 1
    blocking = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tools = list(task.data["tools"])  # type: ignore[misc]
        described = {one["function"]["name"] for one in self.tools}
        if unknown := {name for answer in task.data["answers"] for name in answer} - described:
            raise ValueError(
                f"task {task.id}: answers: there is no tool {min(unknown)!r}, so no call can be right"
            )

    def reset(self) -> list[Message]:
        return list(self.task.data["messages"])

    def step(self, action: Action) -> Step:
        answers = self.task.data["answers"]
        # What cannot be read as a call is none, which is right where none is asked for.
        readable = not action.parse_errors or not answers
        right = readable and same_calls(action.tool_calls, answers, self.tools)
        return Step(reward=float(right), done=True, success=right)
