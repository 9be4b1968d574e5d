"""Another environment's agent that may spawn threads: they work at once, and what they found comes back.

    main agent   spawn(["1", "2", "3"]) ---+                  +--> answer
                                           +--> thread/1 --+  |
                                           +--> thread/2 --+--+ the last line of each
                                           +--> thread/3 --+

Each thread is an agent, with a conversation and a trajectory of its own; its episode's reward is its own, too. Threads
are sampled at once (`Step.ahead`), on any engine. Form: APR (arXiv 2504.15466) and ThreadWeaver (arXiv 2512.07843),
whose threads read what the main agent was given.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

from asyncrl.env.protocol import MAIN_AGENT, Action, Step, with_text
from asyncrl.env.settings import share, whole_number
from asyncrl.env.wrapper import Wrapper, then
from asyncrl.envs.threads.parts import Parts
from asyncrl.envs.tools import call_message, say
from asyncrl.types import Message, Task

THREAD = "thread"
"""The agent that threads are."""
MOST_CHARACTERS = 2000
"""Of a prompt, and of what comes back of a thread."""
SPAWN = {
    "type": "function",
    "function": {
        "name": "spawn",
        "description": "Have threads work at once, each on what you were given and a prompt of its own. Their last "
        "lines come back.",
        "parameters": {
            "type": "object",
            "properties": {"prompts": {"type": "array", "items": {"type": "string"}}},
            "required": ["prompts"],
        },
    },
}


class Threads(Wrapper):
    """Play `tasks`, an environment by its name, whose agent may spawn up to `width` threads in a turn, in `rounds`
    turns at most.

    task_config: the settings of that environment. demonstrated: the share of its expert's episodes that spawn threads,
    where it says how it divides a task (`parts`).
    """

    def __init__(
        self,
        task: Task,
        tasks: str = "",
        task_config: dict[str, Any] | None = None,
        width: int = 4,
        rounds: int = 1,
        demonstrated: float = 0.5,
    ) -> None:
        self.width = whole_number("width", width, 1, 64)
        self.rounds = whole_number("rounds", rounds, 1, 16)
        demonstrated = share("demonstrated", demonstrated)
        super().__init__(task, tasks, task_config)
        self._divides = Random(f"threads {task.seed}").random() < demonstrated
        self._opening: list[Message] = []
        self._waiting: list[tuple[str, list[Message]]] = []
        """Threads that have not answered, with what they read."""
        self._answers: list[str] = []
        """What those of this turn have answered."""
        self.spawned: list[str] = []
        """Names of all threads that have answered."""
        self._round = 0
        self._earned = 0.0
        """What the main agent has earned, which every thread has earned, too."""

    def adopt(self) -> None:
        """See `Wrapper.adopt`; threads take turns, too."""
        self.max_turns = self.played.max_turns + self.rounds * (1 + self.width)
        self.tools = [*self.played.tools, SPAWN]  # type: ignore[misc]

    def opened(self, messages: list[Message]) -> list[Message]:
        """See `Wrapper.opened`."""
        self._opening = messages
        return super().opened(messages)

    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Take a thread's turn, or the main agent's: a call of `spawn`, or a turn of the other environment."""
        if self._waiting:
            return self._answered(action)
        if any(call.name == "spawn" for call in action.tool_calls):
            return self._spawn(action)
        return then(self.played.step(action), self._credited)

    def _credited(self, step: Step) -> Step:
        """Return the step with what it earns for the threads."""
        self._earned += step.reward
        return replace(step, rewards={**step.rewards, **dict.fromkeys(self.spawned, step.reward)})

    def oracle(self, messages: list[Message]) -> Message:
        """Divide the task where the other environment's expert can, in the share of episodes that is asked for."""
        parts = self._parts()
        if parts is None:
            return self.played.oracle(messages)
        if self._waiting:
            return say(parts.works[len(self._answers)])
        return say(parts.answer) if self._round else call_message(("spawn", {"prompts": list(parts.prompts)}))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return say("?") if self._waiting else self.played.random_policy(messages, rng)

    def _parts(self) -> Parts | None:
        found = getattr(self.played, "parts", None)
        if not self._divides or found is None:
            return None
        parts: Parts = found()
        return parts if len(parts.prompts) <= self.width else None

    def _spawn(self, action: Action) -> Step:
        """Open the threads of a turn; what is wrong with it is said to the main agent."""
        prompts = action.tool_calls[0].arguments.get("prompts")
        if wrong := self._wrong(action, prompts):
            answers = [{"role": "tool", "content": f"error: {wrong}"} for _ in action.tool_calls]
            return Step(answers + action.error_messages())
        assert isinstance(prompts, list)
        self._round += 1
        first = len(self.spawned) + 1
        self._waiting = [
            (f"{THREAD}/{number}", _with_prompt(self._opening, prompt))
            for number, prompt in enumerate(prompts, first)
        ]
        (name, messages), *others = self._waiting
        return Step(messages, agent=name, tools=[], ahead=dict(others))

    def _wrong(self, action: Action, prompts: Any) -> str:
        if len(action.tool_calls) + len(action.parse_errors) > 1:
            return "spawn must be the only call of a turn"
        if self._round >= self.rounds:
            return "no more threads"
        if not isinstance(prompts, list) or not 1 <= len(prompts) <= self.width:
            return f"prompts must be a list of 1 to {self.width} texts"
        if not all(isinstance(one, str) and len(one) <= MOST_CHARACTERS for one in prompts):
            return f"each prompt must be a text of at most {MOST_CHARACTERS} characters"
        return ""

    def _answered(self, action: Action) -> Step:
        """Take what a thread has found; the next one is addressed, or the main agent after the last."""
        name, _ = self._waiting.pop(0)
        self.spawned.append(name)
        lines = action.content.strip().splitlines() or [""]
        self._answers.append(lines[-1][:MOST_CHARACTERS])
        # What the main agent has earned before stands for this thread, too.
        if self._waiting:
            name, messages = self._waiting[0]
            return Step(messages, reward=self._earned, agent=name, tools=[])
        found = "\n".join(f"{number}: {text}" for number, text in enumerate(self._answers, 1))
        self._answers = []
        return Step([{"role": "tool", "content": found}], reward=self._earned, agent=MAIN_AGENT)


def _with_prompt(opening: list[Message], prompt: str) -> list[Message]:
    """Return what a thread reads: the opening messages, with its prompt at the end of the last one."""
    *before, last = opening
    return [*before, with_text(last, prompt, "\n")]
