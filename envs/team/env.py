"""A main agent asks the keepers of stores, which are agents too, and combines their answers.

One policy plays main agent and keepers, each in its own conversation: the main agent's tool `ask` opens a keeper's,
whose last turn is the tool's result. Each conversation becomes a trajectory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import MAIN_AGENT, Action, Step, ToolCall
from asyncrl.env.settings import one_of, whole_number
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.team.store import Question, make_question
from asyncrl.envs.tools import ToolError, answer_calls, call_message, say, schema
from asyncrl.types import Message, Task

KEEPER = "keeper"
RULES = "Answer with a number. Only the keeper of a store knows what is in it: ask with tool ask."
KEEPER_RULES = "You keep store {name}. Answer the question with a number."
COUNT_TOOL = schema("count", "Count a thing in your store.", thing="string")
ASKED_CHARACTERS = 300
SAID_CHARACTERS = 300


@dataclass(slots=True)
class Asked:
    """One question to a keeper."""

    call: ToolCall
    agent: str
    store: str
    reply: str = ""


class Team(ProceduralEnv):
    """`level` 1 to 3 is the number of stores. At level 3 a keeper has to count with its own tool.

    `credit` is "team" (all agents get the main agent's reward) or "own" (a keeper gets 1 for the right number).
    """

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tools: ClassVar[list[dict[str, Any]]] = [
        schema("ask", "Ask the keeper of a store.", store="string", question="string")
    ]

    def __init__(self, task: Task, level: int = 1, credit: str = "team", max_turns: int = 0) -> None:
        super().__init__(task, level)
        self.credit = one_of("credit", credit, ("team", "own"))
        self.max_turns = whole_number("max_turns", max_turns, 0, 64) or 2 + self.level * (
            2 if level < 3 else 4
        )
        self.question: Question = self.draw(lambda rng: make_question(self.level, rng), lambda q: q.key)
        self.turns = self.keepers = 0
        self.asked: list[Asked] = []
        """Questions of the main agent's last turn."""
        self.answers: list[Message] = []
        """The main agent's next messages, in the order of its calls; a keeper's is filled in when it replies."""
        self.speaking: Asked | None = None
        self.earned: dict[str, float] = {}
        """Keepers that have replied, and whether the number was right."""

    def reset(self) -> list[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.question.text}]

    async def step(self, action: Action) -> Step:
        """Take the turn of the current agent: the main agent, or the keeper it has asked."""
        self.turns += 1
        step = await (self._keeper(action) if self.speaking else self._main(action))
        if self.turns >= self.max_turns and not step.done:
            return Step(done=True, success=False, truncated=True, components=step.components)
        return step

    def oracle(self, messages: list[Message]) -> Message:
        if self.speaking is not None:
            held = self.question.stores[self.speaking.store]
            if self.level == 3 and messages[-1]["role"] != "tool":
                return call_message(("count", {"thing": self.question.thing}))
            return say(str(held[self.question.thing]))
        if self.asked:
            return say(str(sum(int(asked.reply) for asked in self.asked)))
        return call_message(*(("ask", {"store": s, "question": self._ask()}) for s in self.question.stores))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """The main agent asks and adds up some of the answers; keepers name a number they see."""
        if self.speaking is not None:
            held = self.question.stores[self.speaking.store]
            if self.level == 3 and messages[-1]["role"] != "tool" and rng.random() < 0.7:
                return call_message(("count", {"thing": rng.choice(list(held))}))
            return say(str(rng.choice(list(held.values()))))
        if self.asked:
            numbers = [int(n) for asked in self.asked for n in re.findall(r"\d+", asked.reply)] or [0]
            return say(str(sum(rng.sample(numbers, rng.randint(1, len(numbers))))))
        return call_message(*(("ask", {"store": s, "question": self._ask()}) for s in self.question.stores))

    def problem_key(self) -> str:
        return self.question.key

    def _ask(self) -> str:
        return f"how many {self.question.thing}?"

    async def _main(self, action: Action) -> Step:
        components = {"malformed": float(bool(action.parse_errors)), "asked": float(len(action.tool_calls))}
        if not action.tool_calls and not action.parse_errors:
            right = _number(action.content) == self.question.answer
            rewards = {
                agent: float(right) if self.credit == "team" else own for agent, own in self.earned.items()
            }
            return Step(reward=float(right), done=True, success=right, rewards=rewards, components=components)
        self.asked = []
        queue = list(action.tool_calls)
        self.answers = await answer_calls(action, self.tools, {"ask": lambda **a: self._hear(queue, **a)})
        step = self._next(components)
        # No keeper waits for what another one says.
        return replace(step, ahead={asked.agent: self._opening(asked) for asked in self.asked[1:]})

    def _hear(self, queue: list[ToolCall], store: str, question: str) -> str:
        """Record a question; its answer is filled in when the keeper has replied."""
        if store not in self.question.stores:
            raise ToolError(f"there is no store {store[:40]!r}")
        if len(question) > ASKED_CHARACTERS:
            raise ToolError(f"a question has at most {ASKED_CHARACTERS} characters")
        call = next(c for c in queue if c.arguments == {"store": store, "question": question})
        queue.remove(call)
        self.keepers += 1
        self.asked.append(Asked(call, f"{KEEPER}/{self.keepers}", store))
        return ""

    async def _keeper(self, action: Action) -> Step:
        speaking = self.speaking
        assert speaking is not None
        held = self.question.stores[speaking.store]
        tools = [COUNT_TOOL] if self.level == 3 else []
        components = {"keeper_malformed": float(bool(action.parse_errors))}
        if action.tool_calls or action.parse_errors:
            return Step(
                await answer_calls(action, tools, {"count": lambda thing: _count(held, thing)})
                if tools
                else [{"role": "user", "content": "You have no tools. Answer with a number."}],
                components=components,
            )
        speaking.reply = action.content.strip()[:SAID_CHARACTERS] or "(nothing)"
        self.earned[speaking.agent] = float(_number(speaking.reply) == held[self.question.thing])
        for message in self.answers:
            if message.get("tool_call_id") == speaking.call.id and not message["content"]:
                message["content"] = speaking.reply
                break
        return self._next(components)

    def _next(self, components: dict[str, float]) -> Step:
        """Switch to the next keeper that has been asked, or back to the main agent."""
        self.speaking = next((asked for asked in self.asked if not asked.reply), None)
        if self.speaking is None:
            return Step(self.answers, agent=MAIN_AGENT, components=components)
        tools = [COUNT_TOOL] if self.level == 3 else None
        return Step(
            self._opening(self.speaking), agent=self.speaking.agent, tools=tools, components=components
        )

    def _opening(self, asked: Asked) -> list[Message]:
        """Return what a keeper reads first."""
        held = self.question.stores[asked.store]
        listing = (
            ", ".join(held) if self.level == 3 else ", ".join(f"{n} {thing}" for thing, n in held.items())
        )
        return [
            {"role": "system", "content": KEEPER_RULES.format(name=asked.store)},
            {"role": "user", "content": f"{listing}\n{asked.call.arguments['question']}"},
        ]


def _count(held: Any, thing: str) -> str:
    if thing not in held:
        raise ToolError(f"there is no {thing[:40]!r} in the store; there are {', '.join(held)}")
    return str(held[thing])


def _number(text: str) -> int | None:
    """Return the last whole number in a text."""
    found = re.findall(r"-?\d{1,9}", text)
    return int(found[-1]) if found else None
