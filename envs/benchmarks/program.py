"""A program to write, judged in the sandbox: by its output for inputs, by the results of calls, or by a benchmark's own
tests of a function. None of them can be reached by the program; see docs/rewards.md.
"""

from __future__ import annotations

from asyncrl.agent_time import needed_s
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.extensions.program_rewards.published import judge_program, program_tests
from asyncrl.types import Message, Task

RULES = "Write a Python program. Answer with the whole program in one fenced block."


class Program(Env):
    """One turn; `task.data` holds `statement` and tests (`asyncrl.extensions.program_rewards.published`).

    They are `tests`, [stdin, stdout] pairs; `calls`, the name of a function and [arguments, result] pairs; or `check`,
    Python code that raises where the program is wrong, with `prefix`, what stands before the program, and `functions`,
    the names it tests.

    `time_limit_s` is for all of `check`, or for each test. `sandbox` names a backend.
    """

    provides = frozenset({"components"})
    max_turns = 1

    def __init__(
        self, task: Task, rules: str = RULES, time_limit_s: float = 10.0, sandbox: str = "auto"
    ) -> None:
        super().__init__(task)
        if not 0.1 <= time_limit_s <= 120:
            raise ValueError(f"time_limit_s: must be from 0.1 to 120, got {time_limit_s}")
        self.rules, self.time_limit_s, self.sandbox = rules, time_limit_s, sandbox
        self.statement = str(task.data["statement"])
        self.tests = program_tests(task.data)

    def least_step_s(self) -> float:
        return needed_s(self.time_limit_s)

    def reset(self) -> list[Message]:
        system = [{"role": "system", "content": self.rules}] if self.rules else []
        return [*system, {"role": "user", "content": self.statement}]

    async def step(self, action: Action) -> Step:
        """Judge the program of the turn."""
        verdict, count = await judge_program(
            action.content, self.tests, time_limit_s=self.time_limit_s, sandbox=self.sandbox
        )
        fraction = sum(verdict.passed) / count
        solved = fraction == 1.0
        return Step(reward=float(solved), done=True, success=solved, components={"tests": fraction})
