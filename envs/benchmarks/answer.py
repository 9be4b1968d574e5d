r"""A question with one right answer, a number or an expression, compared by math-verify (GSM8K, MATH, AIME)."""

from __future__ import annotations

import asyncio

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.envs.math_tool.reward import GRADER, extract
from asyncrl.types import Message, Task

RULES = r"Solve the problem. Think step by step, and end with the answer in \boxed{...}."


class Answer(Env):
    """One turn; `task.data` holds `question` and `answer` (LaTeX without dollar signs). `rules` is the system message,
    none if it is empty."""

    max_turns = 1

    def __init__(self, task: Task, rules: str = RULES) -> None:
        super().__init__(task)
        self.rules = rules
        self.question, self.answer = str(task.data["question"]), str(task.data["answer"])

    def reset(self) -> list[Message]:
        system = [{"role": "system", "content": self.rules}] if self.rules else []
        return [*system, {"role": "user", "content": self.question}]

    async def step(self, action: Action) -> Step:
        correct = await asyncio.to_thread(GRADER.equal, self.answer, extract(action.content))
        return Step(reward=float(correct), done=True, success=correct)
