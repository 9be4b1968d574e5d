"""Our environments as tasksets of `verifiers.v1` (the library's versions from 0.2 on).

verifiers finds a taskset by the name of a module of a user's own, which is these two lines:

    from asyncrl.extensions.env_adapters.verifiers_taskset import AsyncrlHarness, AsyncrlTaskset
    __all__ = ["AsyncrlHarness", "AsyncrlTaskset"]

Needs verifiers, and asyncrl without what it depends on (`our_episode.py`).
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field
from verifiers.v1.clients import ModelContext
from verifiers.v1.runtimes import ProgramResult

from asyncrl.errors import EpisodeError
from asyncrl.extensions.env_adapters.our_episode import OurEpisode, tasks_of
from asyncrl.types import Task

__all__ = ["AsyncrlHarness", "AsyncrlTaskset"]


class AsyncrlConfig(vf.TasksetConfig):
    """Which environment, and which of its tasks."""

    env: str = "gridworld"
    """Its name or import path."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings."""
    split: str = "heldout"
    """"train" or "heldout"."""
    tasks: int = 100
    """How many there are, at most."""


class AsyncrlData(vf.TaskData):
    """A task of ours, with the environment's settings."""

    task: dict[str, Any]
    config: dict[str, Any]


class AsyncrlTask(vf.Task[AsyncrlData, vf.State, vf.TaskConfig]):
    """Rewards are recorded while it is played: they are the environment's."""


class AsyncrlTaskset(vf.Taskset[AsyncrlTask, AsyncrlConfig]):
    """Tasks of an environment of ours."""

    def load(self) -> Iterator[AsyncrlTask]:
        """Yield the tasks of the split. Raises `ConfigError` for an unknown environment."""
        own = self.config
        for task in tasks_of(own.env, own.config, own.split, own.tasks):
            # The library wants a prompt. What is asked is known when the episode is opened.
            data = AsyncrlData(id=task.id, name=task.id, prompt=task.id, task=asdict(task), config=own.config)
            yield AsyncrlTask(data, own.task)


class AsyncrlHarness(vf.Harness[vf.HarnessConfig]):
    """The loop of an episode of ours: the environment asks, the model answers, until the environment ends it.

    A turn that a limit of tokens cuts ends its episode, as it does in a rollout worker, without being played.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Play the task; record its reward, success and components on the trace."""
        assert isinstance(data, AsyncrlData)
        episode = OurEpisode(Task(**data.task), data.config)
        trace.record_reward("environment", 0.0)
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
                await _play(episode, client, ctx.model, trace)
        except EpisodeError as error:
            return ProgramResult(1, "", f"{type(error).__name__}: {error}")
        finally:
            await episode.close()
        trace.record_metrics(episode.metrics())
        return ProgramResult(0, "", "")


async def _play(episode: OurEpisode, client: AsyncOpenAI, model: str, trace: vf.Trace) -> None:
    messages: list[Any] = await episode.open()
    tools: dict[str, Any] = {"tools": episode.tools} if episode.tools else {}
    while not episode.done:
        reply = await client.chat.completions.create(model=model, messages=messages, **tools)
        choice = reply.choices[0]
        if choice.finish_reason == "length":
            return
        message = choice.message.model_dump(exclude_none=True)
        messages += [message, *await episode.step(message)]
        trace.record_reward("environment", episode.reward)
