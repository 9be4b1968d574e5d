"""Environments of `verifiers.v1` (the library's versions from 0.2 on), played in a Python of their own.

They pin packages that do not fit beside asyncrl's. So the library runs in a process of another interpreter
(`elsewhere.py`, `verifiers_episodes.py`), whose agents ask for chat completions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.calls import assistant_message, plain, row_data, same_message
from asyncrl.extensions.env_adapters.elsewhere import EpisodeElsewhere, ask_helper, helper_process
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.helper_process import HelperProcess
from asyncrl.types import Message, Task

MAX_TURNS = 16
AT_ONCE = 256
"""Tasks that are listed together."""


@dataclass
class Heard:
    """A conversation as the environment's agent has it, and what the policy was shown of it."""

    trace: str
    messages: list[Message]
    """Compared with the next request; without the malformed calls that the adapter answered itself."""
    malformed: list[Message] = field(default_factory=list)
    """Answers to malformed calls of the last turn, which made others too."""


class VerifiersV1(AdapterEnv):
    """Play an environment of `verifiers.v1`.

    `id` is its taskset and `taskset` the taskset's settings; `held_out` are other settings of the held-out split, and
    without any even rows train and odd ones are held out. `environment` is the rest of the library's `[env]` block:
    `id` of the environment, and for each agent `harness`, `runtime`, `model`, `client` and so on. Agents run their loop
    in the helper process unless that names a harness, and have `max_turns` turns unless it says otherwise. `python` is
    an interpreter with verifiers. The reward is the weighted sum of the agent's trace; rewards and metrics become
    components; success is a reward of at least `success_at`. Each agent's conversation is a trajectory with the reward
    of its own trace.
    """

    required: ClassVar[tuple[str, ...]] = ("id", "python")

    def __init__(
        self,
        task: Task,
        id: str = "",
        python: str = "",
        taskset: dict[str, Any] | None = None,
        held_out: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        max_turns: int = MAX_TURNS,
        success_at: float = 1.0,
    ) -> None:
        super().__init__(task)
        if not id or not python:
            raise ValueError("id and python: must name a taskset, and an interpreter with verifiers")
        self.id, self.limit, self.success_at = id, max_turns, success_at
        self.source = _source(task.split, id, taskset, held_out, environment, max_turns)
        self.turn = 0
        self.episode = EpisodeElsewhere(helper_of(python), named(id), "id")
        self.heard: dict[str, Heard] = {}
        """By agent."""
        self.agent = MAIN_AGENT

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield one task per row of the taskset that belongs to the split; may be endless."""
        for key in cls.required:
            if not config.get(key):
                raise ConfigError(f"env.config.{key}: environment {env!r} needs it")
        id, helper, held_out = config["id"], helper_of(config["python"]), config.get("held_out")
        source = _source(
            split,
            id,
            config.get("taskset"),
            held_out,
            config.get("environment"),
            config.get("max_turns", MAX_TURNS),
        )
        first, stride = (0, 1) if held_out else (int(split == "heldout"), 2)
        listed = 0
        while names := ask_helper(
            helper, {"tasks": source, "from": listed, "count": AT_ONCE}, named(id), "id"
        )["rows"]:
            for row, name in enumerate(names, listed):
                if row % stride == first:
                    data = {**row_data(row, split, own=bool(held_out)), **({"name": name} if name else {})}
                    yield Task(f"{split}-{row}", env, seed=row, split=split, data=data)
            listed += len(names)

    async def reset(self) -> list[Message]:
        """Start the episode; show what its first agent asks."""
        opened = await self.episode.open(self.source, self.task.data.get("row", self.task.seed))
        # Malformed calls take turns that the library does not count.
        self.max_turns = opened["max_turns"] + self.limit
        if "end" in opened:
            raise self._failure(opened["end"]) or EnvironmentFailure(
                f"{named(self.id)} ended before it asked the policy"
            )
        step = self._show(opened["asked"])
        self.tools = step.tools or []  # type: ignore[misc]
        return step.messages

    async def step(self, action: Action) -> Step:
        """Answer the agent that asked, and show what is asked next, or end with the environment's rewards."""
        self.turn += 1
        message = assistant_message(action, arguments_as_text=True)
        if action.parse_errors and not action.tool_calls and self.turn < self.limit:
            # Without calls the turn would be the agent's last.
            return Step(action.error_messages())
        heard = self.heard[self.agent]
        heard.messages.append(message)
        heard.malformed = action.error_messages() if action.tool_calls else []
        reply = await self.episode.step(message)
        return self._show(reply["asked"]) if "asked" in reply else self._end(reply["end"])

    async def close(self) -> None:
        """End the episode where it is still being played."""
        await self.episode.close()

    def _show(self, asked: dict[str, Any]) -> Step:
        """Return what is new of a request: the rest of a conversation that it continues, or a new one."""
        if not asked["trainable"]:
            raise EnvironmentFailure(
                f"{named(self.id)}: agent {asked['seat']!r} is not to be trained, so the policy "
                f"cannot play it: give env.config.environment.{asked['seat']} a model and a client of its own"
            )
        messages: list[Message] = asked["messages"]
        new = [same_message(message) for message in messages]
        for agent, heard in self.heard.items():
            known = [same_message(message) for message in heard.messages]
            if heard.trace == asked["trace"] and new[: len(known)] == known and len(new) > len(known):
                shown = plain(messages[len(known) :]) + heard.malformed
                heard.messages, heard.malformed = list(messages), []
                back = None if agent == self.agent else agent
                self.agent = agent
                return Step(shown, agent=back)
        self.agent = MAIN_AGENT if not self.heard else f"{asked['seat'] or 'agent'}/{len(self.heard)}"
        self.heard[self.agent] = Heard(asked["trace"], list(messages))
        return Step(plain(messages), agent=self.agent or None, tools=asked["tools"])

    def _end(self, end: dict[str, Any]) -> Step:
        if failure := self._failure(end):
            raise failure
        traces = end["traces"]
        rewards = {
            agent: float(traces[heard.trace]["reward"])
            for agent, heard in self.heard.items()
            if heard.trace in traces
        }
        main = traces.get(self.heard[MAIN_AGENT].trace)
        if main is None:
            raise EnvironmentFailure(f"{named(self.id)} dropped the trace of its first agent")
        reward = rewards.pop(self.agent, 0.0)
        return Step(
            reward=reward,
            rewards=rewards,
            done=True,
            success=float(main["reward"]) >= self.success_at,
            components={**main["rewards"], **main["metrics"]},
            truncated=bool(main["truncated"]),
        )

    def _failure(self, end: dict[str, Any]) -> Exception | None:
        """Return the failure that an episode ended with: of the infrastructure if all its errors are."""
        if not end["errors"]:
            return None
        first = next((one for one in end["errors"] if not one["infrastructure"]), end["errors"][0])
        kind = InfrastructureError if first["infrastructure"] else EnvironmentFailure
        return kind(f"{named(self.id)}: {first['type']}: {first['message']}")


def helper_of(python: str) -> HelperProcess:
    """Return the process with verifiers in this interpreter."""
    return helper_process(python, "verifiers_episodes.py", "verifiers.v1")


def named(id: str) -> str:
    """Return how errors name the environment."""
    return f"verifiers environment {id!r}"


def _source(
    split: str,
    id: str,
    taskset: dict[str, Any] | None,
    held_out: dict[str, Any] | None,
    environment: dict[str, Any] | None,
    max_turns: int,
) -> dict[str, Any]:
    """Return what the helper process makes taskset and environment from."""
    settings = {**(taskset or {}), **((held_out or {}) if split == "heldout" else {}), "id": id}
    return {"taskset": settings, "environment": environment or {}, "max_turns": max_turns}
