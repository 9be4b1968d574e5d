"""Repair a machine that a language model simulates: measure, then replace the faulty part.

The model behind an OpenAI-compatible endpoint writes the observations; this module decides whether the right part was
replaced. Reward 1 if so.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import one_of
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.simulated.model import MODES, Model
from asyncrl.envs.simulated.scenario import Scenario, make_scenario
from asyncrl.envs.simulated.stand_in import MODEL
from asyncrl.envs.tools import say
from asyncrl.errors import EnvironmentFailure
from asyncrl.types import Message, Task

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"observation": {"type": "string"}, "replaced": {"type": ["string", "null"]}},
    "required": ["observation", "replaced"],
    "additionalProperties": False,
}
ATTEMPTS = 3
"""Requests that are made until a reply is well-formed."""
SAID_CHARACTERS = 500
SHOWN_CHARACTERS = 500


class Simulated(ProceduralEnv):
    """`level` 1 to 3: 2, 4 or 8 parts. `url` and `model` name the endpoint; without `url` rules stand in for a model.

    `mode` is "live", "record" (into the file `recording`) or "replay" (from it).
    """

    blocking: ClassVar[bool] = False
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(
        self,
        task: Task,
        level: int = 1,
        url: str = "",
        model: str = MODEL,
        mode: str = "live",
        recording: str = "",
        timeout_s: float = 20.0,
    ) -> None:
        super().__init__(task, level)
        self.model = Model(url, model, one_of("mode", mode, MODES), recording, timeout_s)
        self.scenario: Scenario = self.draw(lambda rng: make_scenario(self.level, rng), _key)
        self.max_turns = self.scenario.turns
        self.history = [{"role": "system", "content": self.scenario.prompt}]
        self.turns = 0
        self.signals: dict[str, bool] = {}
        """Measurements so far: whether the signal behind a part is good. For the scripted expert."""

    def least_step_s(self) -> float:
        return ATTEMPTS * self.model.longest_s

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": self.scenario.goal}]

    async def step(self, action: Action) -> Step:
        """Have the model answer one turn; a replacement or the last turn ends the episode."""
        self.turns += 1
        text = " ".join(action.content.split())[:SAID_CHARACTERS]
        self.history.append({"role": "user", "content": text or "(says nothing)"})
        reply = await self._reply()
        self.history.append({"role": "assistant", "content": json.dumps(reply)})
        replaced, observation = reply["replaced"], reply["observation"][:SHOWN_CHARACTERS]
        verb, _, part = text.partition(" ")
        if verb == "measure" and part in self.scenario.parts:
            self.signals[part] = "good" in observation
        right = replaced == self.scenario.fault
        over = replaced is not None or self.turns >= self.max_turns
        return Step(
            [] if over else [{"role": "user", "content": observation}],
            reward=float(right),
            done=over,
            success=right if over else None,
            components={"replaced": float(replaced is not None)},
        )

    async def close(self) -> None:
        await self.model.close()

    def oracle(self, messages: list[Message]) -> Message:
        """Halve the part of the path where the signal turns bad."""
        good = [i for i, part in enumerate(self.scenario.parts) if self.signals.get(part) is True]
        bad = [i for i, part in enumerate(self.scenario.parts) if self.signals.get(part) is False]
        low, high = max(good, default=-1) + 1, min(bad, default=len(self.scenario.parts) - 1)
        if low >= high:
            return say(f"replace {self.scenario.parts[low]}")
        return say(f"measure {self.scenario.parts[(low + high) // 2]}")

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        verb = rng.choice(["measure", "replace"])
        return say(f"{verb} {rng.choice(self.scenario.parts)}")

    def problem_key(self) -> str:
        return _key(self.scenario)

    def secrets(self) -> tuple[str, ...]:
        """The messages for the simulator."""
        return (self.scenario.prompt, f"fault: {self.scenario.fault}")

    async def _reply(self) -> dict[str, Any]:
        """Return the model's parsed reply. Raises `EnvironmentFailure` if it is malformed."""
        messages, problem = list(self.history), ""
        for _ in range(ATTEMPTS):
            content = await self.model.ask(messages, SCHEMA)
            try:
                return self._parsed(content)
            except (ValueError, RecursionError) as error:
                problem = str(error)
                messages += [
                    {"role": "assistant", "content": content[:2000]},
                    {
                        "role": "user",
                        "content": f"That was not understood: {problem}. Reply with the JSON object only.",
                    },
                ]
        raise EnvironmentFailure(f"simulated: {ATTEMPTS} replies were not understood; the last: {problem}")

    def _parsed(self, content: str) -> dict[str, Any]:
        text = content.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
        reply = json.loads(text)
        if not isinstance(reply, dict) or not isinstance(reply.get("observation"), str):
            raise ValueError('it must be an object with a text "observation"')
        replaced = reply.get("replaced")
        if replaced is not None and replaced not in self.scenario.parts:
            raise ValueError(
                f'"replaced" must be null or one of {", ".join(self.scenario.parts)}, got {replaced!r:.60}'
            )
        return {"observation": reply["observation"], "replaced": replaced}


def _key(scenario: Scenario) -> str:
    return f"{scenario.parts} {scenario.fault}"
