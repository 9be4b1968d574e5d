"""Solve a math problem with a Python interpreter in a sandbox.

The tool `python` runs a program and shows its output; files in the working folder stay, variables do not. A turn
without tool calls is the final answer, judged as docs/rewards.md says. Reward 1 for the right answer.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any, ClassVar

from asyncrl.agent_time import needed_s
from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.math_tool.data import LEVELS
from asyncrl.envs.math_tool.reward import GRADERS, extract
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.sandboxed import LazySandbox, describe
from asyncrl.envs.tools import answer_calls, call_message, say, schema
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from asyncrl.types import Message, Task

RULES = r"Solve the problem. Tool python runs a program; print what you need. Then answer, as \boxed{...} or alone."
CODE_CHARACTERS = 20_000


class MathTool(ProceduralEnv):
    """Solve a math problem with a Python interpreter in a sandbox.

    `level` 1 (arithmetic) to 4 (number theory); `max_turns` turns; `time_limit_s` for each program.

    `sandbox` names a backend; "auto" takes the warm Python zygote if it works.
    """

    tools: ClassVar[list[dict[str, Any]]] = [
        schema("python", "Run a Python program and return what it prints.", code="string")
    ]

    def __init__(
        self,
        task: Task,
        level: int = 1,
        max_turns: int = 4,
        time_limit_s: float = 5.0,
        sandbox: str = "auto",
    ) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 64)
        if not 0.1 <= time_limit_s <= 60:
            raise ValueError(f"time_limit_s: must be from 0.1 to 60, got {time_limit_s}")
        self.problem = self.draw(lambda rng: rng.choice(LEVELS[self.level])(rng), lambda p: p.question)
        self.time_limit_s = time_limit_s
        self.box = LazySandbox(sandbox, SandboxSpec(limits=Limits(wall_s=time_limit_s)), warm=True)
        self.turns = self.calls = 0

    def least_step_s(self) -> float:
        return needed_s(self.time_limit_s)

    def reset(self) -> list[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.problem.question}]

    async def step(self, action: Action) -> Step:
        """Run the programs of a turn concurrently; a turn without calls is the final answer."""
        self.turns += 1
        if action.tool_calls or action.parse_errors:
            self.calls += len(action.tool_calls)
            components = {
                "malformed": float(bool(action.parse_errors)),
                "calls": float(len(action.tool_calls)),
            }
            if self.turns >= self.max_turns:
                return Step(done=True, success=False, components=components)
            messages = await answer_calls(action, self.tools, {"python": self._run})
            return Step(messages, components=components)
        correct = await GRADERS.judge(self.problem.answer, extract(action.content))
        components = {"answer": float(correct), "used_tool": float(self.calls > 0)}
        return Step(reward=float(correct), done=True, success=correct, components=components)

    async def close(self) -> None:
        await self.box.close()

    def oracle(self, messages: list[Message]) -> Message:
        if messages[-1]["role"] == "tool":
            return say(messages[-1]["content"])
        return call_message(("python", {"code": self.problem.code}))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Run a random operation on numbers of the question, then answer with its output."""
        if messages[-1]["role"] == "tool":
            return say(messages[-1]["content"])
        numbers = re.findall(r"\d+", self.problem.question)
        a, b = rng.choice(numbers), rng.choice(numbers)
        return call_message(("python", {"code": f"print({a} {rng.choice('+-*')} {b})"}))

    def problem_key(self) -> str:
        return self.problem.question

    def secrets(self) -> tuple[str, ...]:
        """The expert's program; the answer itself may be a number of the question."""
        return (self.problem.code,)

    async def _run(self, code: str) -> str:
        if len(code) > CODE_CHARACTERS:
            return f"error: a program has at most {CODE_CHARACTERS} characters"
        box = await self.box.open()
        return describe(await box.exec(code=code))
