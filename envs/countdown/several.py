"""Several countdown problems at once, each worked out line by line: a task whose parts do not need each other."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.countdown.env import Problem, make
from asyncrl.envs.countdown.reward import judge, value_of
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.threads.parts import Parts
from asyncrl.envs.tools import say
from asyncrl.types import Message, Task

MOST = 8
"""Problems of one task."""
RULES = (
    "Reach each target with + - * / from its two numbers. Try what they make, a line each. "
    "Last line: the expressions in their order, with ; between them."
)


class SeveralCountdowns(ProceduralEnv):
    """Reach `problems` targets, each from two numbers of at most `largest`.

    The last line is the answer, one expression for each problem with ";" between them; what is written before it is
    work that is not judged.
    """

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    levels: ClassVar[tuple[int, ...]] = ()
    max_turns = 1

    def __init__(self, task: Task, problems: int = 3, largest: int = 9) -> None:
        super().__init__(task)
        whole_number("problems", problems, 1, MOST)
        whole_number("largest", largest, 2, 100)
        self.problems: list[Problem] = self.draw(
            lambda rng: [make(rng, 1, use_all=True, largest=largest) for _ in range(problems)], _key
        )

    def reset(self) -> list[Message]:
        lines = [f"{number}: {problem.question}" for number, problem in enumerate(self.problems, 1)]
        return [{"role": "system", "content": RULES}, {"role": "user", "content": "\n".join(lines)}]

    def step(self, action: Action) -> Step:
        """Judge the last line: the reward is the share of right expressions, and success that all are right."""
        lines = action.content.strip().splitlines() or [""]
        given = [text.strip() for text in lines[-1].split(";")]
        right = [
            number < len(given) and not judge(given[number], list(problem.numbers), problem.target, True)
            for number, problem in enumerate(self.problems)
        ]
        share = sum(right) / len(right)
        return Step(
            reward=share, done=True, success=all(right) and len(given) == len(right), extracted=lines[-1],
            components={"solved": share},
        )  # fmt: skip

    def oracle(self, messages: list[Message]) -> Message:
        """Work on one problem after another, then answer."""
        parts = self.parts()
        return say("\n".join([*parts.works, parts.answer]))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Combine each problem's numbers by a random operation."""
        return say("; ".join(f"{p.numbers[0]} {rng.choice('+-*/')} {p.numbers[1]}" for p in self.problems))

    def parts(self) -> Parts:
        """Return the problems as an expert divides them among threads."""
        prompts = tuple(str(number) for number in range(1, len(self.problems) + 1))
        tried = [_tried(problem) for problem in self.problems]
        answer = "; ".join(lines[-1].partition(" = ")[0] for lines in tried)
        return Parts(prompts, tuple("\n".join(lines) for lines in tried), answer)

    def problem_key(self) -> str:
        return _key(self.problems)


def _key(problems: list[Problem]) -> str:
    return " | ".join(problem.key for problem in problems)


def _tried(problem: Problem) -> list[str]:
    """Return what the two numbers make, in a fixed order, until it is the target."""
    a, b = problem.numbers
    if a < b:
        a, b = b, a
    lines = []
    for operation in "+-*/":
        value = value_of(f"{a} {operation} {b}")[0]
        if value.denominator == 1:
            lines.append(f"{a} {operation} {b} = {value}")
        if value == problem.target:
            return lines
    raise AssertionError(f"{problem.question} has no solution of this form")
