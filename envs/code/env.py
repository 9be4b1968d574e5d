"""Write a program in a given language; it is judged by its output for hidden inputs.

The statement comes with examples. The agent is told what is wrong (a compiler's message, a wrong output) and may
submit again. Expected outputs never enter the sandbox; every attempt runs in a new one.
"""

from __future__ import annotations

from random import Random

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import one_of, whole_number
from asyncrl.envs.code.grading import Verdict, extract, judge
from asyncrl.envs.code.problems import READ_A_B, make, random_expression
from asyncrl.envs.code.programs import render
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.tools import say
from asyncrl.sandbox import languages
from asyncrl.types import Message, Task

RULES = "Write a {language} program that reads stdin and prints the answer."


class Code(ProceduralEnv):
    """Write a program in any language, judged by its output for hidden inputs.

    `language` is a profile's name; `attempts` programs may be submitted; `reward` is "all" or "fraction".

    `examples` tests are shown; `hidden_tests` are not shown and decide the reward. `sandbox` names a backend.
    """

    def __init__(
        self,
        task: Task,
        level: int = 1,
        language: str = "python",
        attempts: int = 2,
        examples: int = 1,
        hidden_tests: int = 4,
        reward: str = "all",
        time_limit_s: float = 10.0,
        sandbox: str = "auto",
    ) -> None:
        super().__init__(task, level)
        self.language = languages.get(task.data.get("language", language)).name
        self.max_turns = whole_number("attempts", attempts, 1, 16)
        self.num_examples = whole_number("examples", examples, 0, 8)
        self.num_hidden = whole_number("hidden_tests", hidden_tests, 1, 64)
        self.reward = one_of("reward", reward, ("all", "fraction"))
        if not 0.1 <= time_limit_s <= 120:
            raise ValueError(f"time_limit_s: must be from 0.1 to 120, got {time_limit_s}")
        self.time_limit_s, self.sandbox = time_limit_s, sandbox
        num_tests = self.num_examples + self.num_hidden
        self.problem = self.draw(lambda rng: make(rng, self.level, num_tests), lambda p: p.statement)
        self.attempts = 0

    def reset(self) -> list[Message]:
        text = self.problem.statement
        for given, expected in self.problem.tests[: self.num_examples]:
            text += f"\nin: {given}out: {expected.rstrip()}"
        rules = RULES.format(language=self.language)
        return [{"role": "system", "content": rules}, {"role": "user", "content": text}]

    async def step(self, action: Action) -> Step:
        """Judge a program; if it is wrong, the answer says why."""
        self.attempts += 1
        if action.tool_calls or action.parse_errors:
            verdict = Verdict((), "error: there are no tools; answer with the program")
        else:
            verdict = await judge(
                extract(action.content), self.problem.tests, self.language, self.sandbox, self.time_limit_s
            )
        hidden = verdict.passed[self.num_examples :]
        fraction = sum(hidden) / self.num_hidden
        solved = fraction == 1.0
        components = {"tests": fraction, "solved": float(solved), "compiled": float(verdict.compiled)}
        if solved or self.attempts >= self.max_turns:
            score = fraction if self.reward == "fraction" else float(solved)
            return Step(reward=score, done=True, success=solved, components=components)
        return Step([{"role": "user", "content": self._reply(verdict)}], components=components)

    def oracle(self, messages: list[Message]) -> Message:
        return say(render(self.problem.source, self.language))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Return a program that prints a random expression of the first two inputs."""
        return say(render(f"{READ_A_B}print({random_expression(rng)})", self.language))

    def problem_key(self) -> str:
        return self.problem.statement

    def secrets(self) -> tuple[str, ...]:
        """Return hidden tests in the form of the examples and error messages."""
        hidden = self.problem.tests[self.num_examples :]
        return tuple(f"in: {given}{word}: {out}" for given, out in hidden for word in ("out", "expected"))

    def _reply(self, verdict: Verdict) -> str:
        """Return what is wrong; of hidden tests only how many failed."""
        failed_example = not all(verdict.passed[: self.num_examples])
        if not verdict.passed or failed_example:
            return verdict.complaint
        failed = self.num_hidden - sum(verdict.passed[self.num_examples :])
        return f"{failed} of {self.num_hidden} hidden tests failed"
