"""Do what the boss asks with the tools of an office: files, mail, calendar, knowledge base, spreadsheets.

Meanwhile mails arrive and meetings move between turns, as determined by the seed. A turn without tool calls ends the
work; reward 1 if the state is then exactly as expected, with nothing else changed.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.office.data import make
from asyncrl.envs.office.services import TOOLS, Services
from asyncrl.envs.office.world import PEOPLE, SHEETS, WORDS
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.tools import answer_calls, call_message, say
from asyncrl.types import Message, Task

RULES = (
    "Do what is asked with the tools, nothing else. The office goes on meanwhile. Say done when all is done."
)


class Office(ProceduralEnv):
    """Do what is asked with the tools of an office that keeps changing.

    `level` 1 (one call) to 4 (several goals); `services` are those whose tools are offered."""

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        level: int = 1,
        services: list[str] | tuple[str, ...] = tuple(TOOLS),
        max_turns: int = 10,
    ) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 64)
        if unknown := set(services) - set(TOOLS):
            raise ValueError(f"services: must be among {', '.join(TOOLS)}, got {min(unknown)!r}")
        self.tools = [tool for service in TOOLS if service in services for tool in TOOLS[service]]  # type: ignore[misc]
        self.problem = self.draw(lambda rng: make(rng, self.level, frozenset(services)), lambda p: p.text)
        self.world = copy.deepcopy(self.problem.world)
        self.handlers = Services(self.world).handlers()
        self.turns = 0

    def reset(self) -> list[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.problem.text}]

    async def step(self, action: Action) -> Step:
        """Answer the calls of a turn, then apply the next events; a turn without calls ends the work."""
        self.turns += 1
        finished = not action.tool_calls and not action.parse_errors
        messages = await answer_calls(action, self.tools, self.handlers)
        errors = sum(m["content"].startswith("error: ") for m in messages)
        components = {"calls": float(len(action.tool_calls)), "errors": float(errors)}
        if finished or self.turns >= self.max_turns:
            self._go_on(all_of_it=True)
            right = self.world.snapshot() == self.problem.expected
            return Step(reward=float(right), done=True, success=right, components=components)
        self._go_on()
        return Step(messages, components=components)

    def oracle(self, messages: list[Message]) -> Message:
        """Look until nothing changes anymore, read the relevant mails, do everything in one turn."""
        goals = self.problem.goals
        looks = [call for goal in goals for call in goal.looks]
        last = max((drift.turn for goal in goals for drift in goal.drifts), default=0)
        looking = last + 1 if looks else 0
        reading = bool([goal for goal in goals if goal.reads])
        turn = self.turns + 1
        if turn <= looking:
            return call_message(*looks)
        if reading and turn == looking + 1:
            wanted = {goal.reads for goal in goals}
            numbers = [i for i, mail in enumerate(self.world.inbox, 1) if mail.subject in wanted]
            return call_message(*(("read_mail", {"number": i}) for i in numbers))
        if turn == looking + reading + 1:
            return call_message(*(call for goal in goals for call in goal.acts(self.world)))
        return say("done")

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Make one random change, then say done."""
        if self.turns:
            return say("done")
        word = rng.choice(WORDS)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("write_file", {"path": f"{rng.choice(WORDS)}.txt", "text": word}),
            ("send_mail", {"to": rng.choice(PEOPLE), "subject": word, "text": rng.choice(WORDS)}),
            ("cancel", {"title": rng.choice(list(self.world.meetings))}),
            (
                "set_cell",
                {
                    "name": rng.choice(SHEETS),
                    "cell": f"B{rng.randint(2, 6)}",
                    "value": str(rng.randint(2, 99)),
                },
            ),
        ]
        offered = {tool["function"]["name"] for tool in self.tools}
        fit = [call for call in calls if call[0] in offered]
        return call_message(rng.choice(fit)) if fit else say("done")

    def problem_key(self) -> str:
        return self.problem.text

    def _go_on(self, all_of_it: bool = False) -> None:
        """Apply the events of this turn, or all that are still to come."""
        for drift in self.problem.drifts:
            if drift.turn == self.turns or (all_of_it and drift.turn > self.turns):
                drift.change(self.world)
