"""Instructions that can be checked, such as a number of words (IFEval, arXiv 2311.07911), by lm-eval's code.

lm-eval may be in a Python of its own, since it does not fit beside everything else: `python` names it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.errors import EnvironmentFailure, InputError
from asyncrl.extensions.instruction_rewards.ifeval import DEADLINE_S, checks_of
from asyncrl.types import Message, Task


class Instructions(Env):
    """One turn; `task.data` holds `prompt`, `instruction_id_list` and `kwargs`, of each instruction its own.

    An answer succeeds if it follows all of them by the strict checks (IFEval's prompt-level strict accuracy), which is
    also the reward. Components: the share of instructions that it follows, strictly and loosely, and whether it follows
    all loosely. python: an interpreter with lm-eval, langdetect, immutabledict and nltk; "" for this one.
    """

    provides = frozenset({"components"})
    max_turns = 1

    def __init__(self, task: Task, python: str = "") -> None:
        super().__init__(task)
        self.checks = checks_of(python)

    @classmethod
    def check_tasks(cls, tasks: Iterable[Task], python: str = "") -> None:
        """Raise `InputError` for a task with an instruction that cannot be checked, naming the task and the reason."""
        listed = list(tasks)
        ids = sorted({one for task in listed for one in task.data["instruction_id_list"]})
        refused = json.loads(checks_of(python).ask({"ids": ids}, DEADLINE_S) or "{}").get("refused", {})
        for task in listed:
            for one in task.data["instruction_id_list"]:
                if one in refused:
                    others = sum(bool(refused.keys() & set(t.data["instruction_id_list"])) for t in listed)
                    raise InputError(
                        f"task {task.id!r}: {one}: {refused[one]}; {others} of {len(listed)} tasks have such an "
                        "instruction. Leave them out, or install what is missing (docs/evaluation.md)"
                    )

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": str(self.task.data["prompt"])}]

    async def step(self, action: Action) -> Step:
        data = self.task.data
        request = {
            "prompt": data["prompt"],
            "ids": data["instruction_id_list"],
            "kwargs": data["kwargs"],
            "response": action.content,
        }
        answer = await asyncio.to_thread(self.checks.ask, request, DEADLINE_S)
        if not answer:
            raise EnvironmentFailure(
                f"task {self.task.id}: lm-eval's checks gave no answer within {DEADLINE_S:g} s; their error is in this "
                "process's log"
            )
        found: dict[str, list[bool]] = json.loads(answer)
        strict, loose = found["strict"], found["loose"]
        followed = all(strict)
        components = {
            "instructions_strict": sum(strict) / len(strict),
            "instructions_loose": sum(loose) / len(loose),
            "prompt_loose": float(all(loose)),
        }
        return Step(reward=float(followed), done=True, success=followed, components=components)
