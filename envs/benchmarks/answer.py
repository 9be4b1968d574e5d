r"""A question with one right answer, a number or an expression, judged as docs/rewards.md says (GSM8K, MATH, AIME)."""

from __future__ import annotations

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.extensions.answer_rewards.extraction import extract
from asyncrl.extensions.answer_rewards.grader import GRADERS
from asyncrl.types import Message, Task

RULES = r"Solve the problem. Think step by step, and end with the answer in \boxed{...}."


class Answer(Env):
    """One turn; `task.data` holds `question` and `answer` (words, numbers or LaTeX). `rules` is the system message,
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
        given = extract(action.content)
        correct = given is not None and await GRADERS.judge(self.answer, given)
        return Step(reward=float(correct), done=True, success=correct)
