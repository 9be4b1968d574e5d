"""Environments of `verifiers.v1` (the library's versions from 0.2 on), played in a Python of their own.

They pin packages that do not fit beside asyncrl's. So the library runs in a process of another interpreter
(`verifiers_episodes.py`), whose agents ask for chat completions: what they ask is shown to the policy, and its turns
are the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.calls import assistant_message
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.extensions.env_adapters.verifiers import plain
from asyncrl.helper_process import HelperProcess
from asyncrl.http_clients import async_client
from asyncrl.types import Message, Task

EPISODES = Path(__file__).with_name("verifiers_episodes.py")
START_S = 180.0
LIST_S = 600.0
"""A taskset may fetch or make its data when it is first listed."""
CLOSE_S = 15.0
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
        self.helper = helper_of(python)
        self.turn = 0
        self.client: httpx.AsyncClient | None = None
        self.episode = ""
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
        while names := _ask(helper, {"tasks": source, "from": listed, "count": AT_ONCE}, id)["rows"]:
            for row, name in enumerate(names, listed):
                if row % stride == first:
                    data = {"row": row, **({"name": name} if name else {})}
                    yield Task(f"{split}-{row}", env, seed=row, split=split, data=data)
            listed += len(names)

    async def reset(self) -> list[Message]:
        """Start the episode; show what its first agent asks."""
        address = await asyncio.to_thread(_ask, self.helper, {"address": True}, self.id)
        url = f"http://127.0.0.1:{address['port']}"
        self.client = async_client(
            url,
            base_url=url,
            headers={"Authorization": f"Bearer {address['key']}"},
            timeout=None,
        )
        row = self.task.data.get("row", self.task.seed)
        self.episode = secrets.token_hex(8)
        opened = await self._post("/episodes", {"id": self.episode, "source": self.source, "row": row})
        # Malformed calls take turns that the library does not count.
        self.max_turns = opened["max_turns"] + self.limit
        if "end" in opened:
            raise self._failure(opened["end"]) or EnvironmentFailure(
                f"verifiers environment {self.id!r} ended before it asked the policy"
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
        reply = await self._post(f"/episodes/{self.episode}", message)
        return self._show(reply["asked"]) if "asked" in reply else self._end(reply["end"])

    async def close(self) -> None:
        """End the episode where it is still being played."""
        if self.client is not None:
            with contextlib.suppress(httpx.HTTPError):
                await self.client.delete(f"/episodes/{self.episode}", timeout=CLOSE_S)
            await self.client.aclose()

    def _show(self, asked: dict[str, Any]) -> Step:
        """Return what is new of a request: the rest of a conversation that it continues, or a new one."""
        if not asked["trainable"]:
            raise EnvironmentFailure(
                f"verifiers environment {self.id!r}: agent {asked['seat']!r} is not to be trained, so the policy "
                f"cannot play it: give env.config.environment.{asked['seat']} a model and a client of its own"
            )
        messages: list[Message] = asked["messages"]
        new = [_common(message) for message in messages]
        for agent, heard in self.heard.items():
            known = [_common(message) for message in heard.messages]
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
            raise EnvironmentFailure(
                f"verifiers environment {self.id!r} dropped the trace of its first agent"
            )
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
        return kind(f"verifiers environment {self.id!r}: {first['type']}: {first['message']}")

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self.client is not None
        try:
            response = await self.client.post(path, json=body)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(
                f"verifiers environment {self.id!r}: its process gave no answer ({type(error).__name__}: {error})"
            ) from error
        if "refused" in answer:
            raise EnvironmentFailure(f"verifiers environment {self.id!r}: {answer['refused']}")
        return answer


@functools.cache
def helper_of(python: str) -> HelperProcess:
    """Return the process with verifiers in this interpreter, shared by all episodes of this process."""
    missing = (
        f"verifiers.v1 did not start in {python}: make an environment for it, and install verifiers there "
        "(docs/adapters.md); its error is in this process's log"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCRL_")}
    return HelperProcess([python, "-I", str(EPISODES)], missing, variables, START_S)


def _ask(helper: HelperProcess, request: dict[str, Any], id: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(helper.ask(request, LIST_S) or "{}")
    if "refused" in answer:
        raise ConfigError(f"id: verifiers environment {id!r} cannot be loaded: {answer['refused']}")
    if not answer:
        raise InfrastructureError(
            f"verifiers environment {id!r}: its process gave no answer within {LIST_S:g} s, or died; its error is in "
            "this process's log"
        )
    return answer


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


def _common(message: Message) -> tuple[Any, ...]:
    """Return what two forms of the same message have in common: role, text, and the calls."""
    content = plain([message])[0]["content"].strip()
    calls = tuple(
        (
            call["function"]["name"],
            json.dumps(json.loads(call["function"]["arguments"] or "{}"), sort_keys=True),
        )
        for call in message.get("tool_calls") or ()
    )
    return message["role"], content, calls
