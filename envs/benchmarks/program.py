"""A program to write, judged in the sandbox: by its output for inputs, or by a benchmark's own tests of a function.

Expected outputs stay outside the sandbox. Tests of a function must enter it, with a mark that the driver prints after
the last of them: a program that ends early passes nothing, one that searches its interpreter for the mark could cheat.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.envs.code.grading import extract, judge
from asyncrl.sandbox.backends import choose, open_sandbox
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from asyncrl.types import Message, Task

RULES = "Write a Python program. Answer with the whole program in one fenced block."
DRIVER = """
import json, sys
given = json.loads(sys.stdin.read())
names = {"__name__": "solution"}
exec(compile(given["program"], "solution.py", "exec"), names)
exec(compile(given["check"], "check.py", "exec"), names)
print()
print(given["mark"])
"""


class Program(Env):
    """One turn; `task.data` holds `statement`, and `tests` ([stdin, stdout] pairs) or `check` (Python code that raises
    where the program is wrong) with `prefix`, what stands before the program.

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

    def reset(self) -> list[Message]:
        system = [{"role": "system", "content": self.rules}] if self.rules else []
        return [*system, {"role": "user", "content": self.statement}]

    async def step(self, action: Action) -> Step:
        program, data = extract(action.content), self.task.data
        if "check" in data:
            fraction = float(await self._checked(program, data))
        else:
            tests = [(str(given), str(expected)) for given, expected in data["tests"]]
            verdict = await judge(program, tests, "python", self.sandbox, self.time_limit_s)
            fraction = sum(verdict.passed) / len(tests)
        solved = fraction == 1.0
        return Step(reward=float(solved), done=True, success=solved, components={"tests": fraction})

    async def _checked(self, program: str, data: dict[str, Any]) -> bool:
        mark = secrets.token_hex(16)
        given = {
            "program": f"{data.get('prefix', '')}\n{program}",
            "check": str(data["check"]),
            "mark": mark,
        }
        backend = (await choose(self.sandbox)).backend
        spec = SandboxSpec(language="python", limits=Limits(wall_s=self.time_limit_s))
        async with await open_sandbox(backend, spec) as box:
            result = await box.exec(
                code=DRIVER, stdin=json.dumps(given).encode(), timeout_s=self.time_limit_s
            )
        return result.ok and result.text.rstrip().endswith(mark)
