"""An agent that walks the grid of `asyncrl.envs.gridworld`, written with the openai package.

As a callable it is `agent.py:play`; as a command, `python ./agent.py`: then the task is JSON on standard input,
gateway and key are in OPENAI_BASE_URL and OPENAI_API_KEY, and the last line it prints is its report.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import openai

from asyncrl.env.protocol import Action
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


@functools.cache
def _client(base_url: str) -> openai.AsyncOpenAI:
    """One client for all episodes: building one is slow, and its connections can be shared."""
    return openai.AsyncOpenAI(base_url=base_url, api_key="unused")


async def play(task: dict[str, Any], episode: Any) -> dict[str, Any]:
    """Play one episode; `episode` has the gateway's `url` and the episode's `key`."""
    client = _client(f"{episode.url}/v1").with_options(api_key=episode.key)
    world = Gridworld(Task(task["id"], "gridworld", task["seed"]))
    messages: list[Any] = world.reset()
    while True:
        answer = await client.chat.completions.create(model="policy", messages=messages)
        said = answer.choices[0].message.content or ""
        step = world.step(Action(said))
        if step.done:
            return {"reward": step.reward, "success": step.success, "components": step.components}
        messages += [{"role": "assistant", "content": said}, *step.messages]


def main() -> None:
    task = json.load(sys.stdin)
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    episode = SimpleNamespace(url=url, key=os.environ["OPENAI_API_KEY"])
    print(json.dumps(asyncio.run(play(task, episode))))


if __name__ == "__main__":
    main()
