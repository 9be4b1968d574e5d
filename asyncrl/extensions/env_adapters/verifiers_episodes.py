"""Plays episodes of `verifiers.v1` in a Python that has verifiers: the player of `verifiers_v1.py`; see
`episode_service.py`. This file imports nothing of asyncrl."""

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import verifiers.v1 as vf
from aiohttp import web
from openai import AsyncOpenAI
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.env import RunSlot
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import (
    default_harness_id,
    env_config_type,
    harness_class,
    load_environment,
    load_taskset,
)

HARNESS = "asyncrl_chat"
INFRASTRUCTURE = ("SandboxError", "TunnelError", "InterceptionError")
"""Errors of verifiers that are nobody's fault who plays."""

__all__ = ["ChatLoop", "Player"]


class ChatLoop(vf.Harness[vf.HarnessConfig]):
    """The loop of verifiers' harness `null`, which offers the task's tools, without a process for every episode."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
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
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
            )
            servers = {name: {"url": url} for name, url in mcp_urls.items()}
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            while True:
                asked: dict[str, Any] = {"model": ctx.model, "messages": messages}
                completion = await client.chat.completions.create(
                    **asked, **({"tools": tools} if tools else {})
                )
                reply = completion.choices[0].message
                messages.append(reply.model_dump(exclude_none=True))
                if not reply.tool_calls:
                    return ProgramResult(0, "", "")
                for call in reply.tool_calls:
                    name, content = call.function.name, ""
                    try:
                        if name not in dispatch:
                            raise ValueError(f"no tool {name!r}; there are {', '.join(dispatch) or 'none'}")
                        arguments = json.loads(call.function.arguments or "{}")
                        content = await call_mcp(connections, dispatch, name, arguments)
                    except Exception as error:
                        content = f"error: {error}"
                    messages.append(
                        {"role": "tool", "tool_call_id": call.id, "name": name, "content": content}
                    )


sys.modules[HARNESS] = sys.modules[__name__]


@dataclass
class Asked:
    """A request to the model that waits for its answer."""

    trace: str
    body: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]


@dataclass
class Playing:
    """An episode that is being played."""

    env: vf.Env
    slot: RunSlot
    run: asyncio.Task[Any]
    waiting: asyncio.Queue[Asked] = field(default_factory=asyncio.Queue)
    asked: Asked | None = None
    """What the last reply showed."""


class Source:
    """A taskset and its environment, as one description makes them: `taskset`, `environment`, `max_turns`."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self.rows: list[vf.Task] = []
        self.env: vf.Env | None = None
        self.opening = asyncio.Lock()
        self._all: Iterator[vf.Task] | None = None

    def task(self, row: int) -> vf.Task | None:
        """Return the task of a row; None after the last one."""
        if self._all is None:
            config = self.config()
            self._all = iter(load_taskset(config.taskset))
        self.rows += itertools.islice(self._all, max(0, row + 1 - len(self.rows)))
        return self.rows[row] if row < len(self.rows) else None

    def config(self) -> vf.EnvConfig:
        """Return the environment's configuration, with what is ours where the author and the user say nothing."""
        description = self.description
        raw: dict[str, Any] = {**description["environment"], "taskset": description["taskset"]}
        kind = env_config_type(raw["taskset"]["id"], raw.get("id") or "")
        for name, one in kind.model_fields.items():
            if not isinstance(one.default, vf.AgentConfig):
                continue
            seat = raw[name] = dict(raw.get(name) or {})
            # The library's own default is a box of a hosting service.
            seat.setdefault("runtime", {"type": "subprocess"})
            if one.default.max_turns is None:
                seat.setdefault("max_turns", description["max_turns"])
            # Of its own loops `null` is the same as ours, and `bash` runs what the model writes.
            if "harness" not in seat and (one.default.harness is None or one.default.harness.id == "null"):
                own = default_harness_id(raw["taskset"]["id"])
                seat["harness"] = {"id": HARNESS if own in ("null", "bash") else own}
        config = kind.model_validate(raw)
        for name, seat in seats(config).items():
            if seat.runtime.type == "subprocess" and harness_class(seat.harness.id).EXECUTES_CODE:
                raise ValueError(
                    f"environment.{name}.harness: {seat.harness.id!r} runs what the model writes, and the runtime is "
                    f'this machine: give environment.{name}.runtime = {{ type = "docker" }}, or one that contains it'
                )
        return config


def seats(config: vf.EnvConfig) -> dict[str, Any]:
    """Return the agents' configurations by name."""
    return {name: value for name, value in config if isinstance(value, vf.AgentConfig)}


class Player:
    """Plays episodes of several sources at the same time."""

    def __init__(self) -> None:
        self.port, self.model_key = 0, secrets.token_hex(16)
        self.sources: dict[str, Source] = {}
        self.listed: dict[str, Source] = {}
        """Of their own: rows are made where nothing else makes them."""
        self.playing: dict[str, Playing] = {}
        self.serving = contextlib.AsyncExitStack()

    def routes(self) -> list[Any]:
        return [
            web.post(f"/{self.model_key}/{{id}}/v1/chat/completions", self.complete),
            web.post(f"/{self.model_key}/{{id}}/v1/{{rest:.*}}", self.refuse),
        ]

    def source(self, description: dict[str, Any]) -> Source:
        return self.sources.setdefault(json.dumps(description, sort_keys=True), Source(description))

    # What the adapter asks.

    def tasks(self, description: dict[str, Any], first: int, count: int) -> dict[str, Any]:
        source = self.listed.setdefault(json.dumps(description, sort_keys=True), Source(description))
        found = []
        for row in range(first, first + count):
            task = source.task(row)
            if task is None:
                break
            found.append(task.data.name or task.data.id or "")
        return {"rows": found}

    async def open(self, id: str, body: dict[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        source = self.source(body["source"])
        async with source.opening:
            # Loading may take long, and others are being played.
            task = await asyncio.to_thread(source.task, body["row"])
            if task is None:
                raise IndexError(f"the taskset has no row {body['row']}, only {len(source.rows)}")
            if source.env is None:
                made = await asyncio.to_thread(load_environment, source.config())
                await self.serving.enter_async_context(made.serving())
                source.env = made
        if gone():
            # Nobody would end the episode.
            return {}
        env = source.env
        (slot,) = env.slots(task)
        url = f"http://127.0.0.1:{self.port}/{self.model_key}/{id}/v1"
        client = EvalClientConfig(base_url=url, api_key_var="ASYNCRL_NO_KEY")
        context = ModelContext(model="policy", client=client)
        episode = Playing(env, slot, asyncio.create_task(env.run_slot(slot, context)))
        self.playing[id] = episode
        turns = sum(seat.max_turns or body["source"]["max_turns"] for seat in seats(env.config).values())
        return {"max_turns": turns, **await self._next(episode)}

    async def step(self, id: str, message: dict[str, Any]) -> dict[str, Any]:
        episode = self.playing.get(id)
        if episode is None or episode.asked is None:
            return {"refused": "the episode is not here, or asks for nothing"}
        episode.asked.answer.set_result(message)
        return await self._next(episode)

    async def close(self, id: str) -> None:
        episode = self.playing.pop(id, None)
        if episode is not None:
            episode.run.cancel()
            await asyncio.wait([episode.run], timeout=10)

    async def _next(self, episode: Playing) -> dict[str, Any]:
        """Return the next request to the model, or the episode's end."""
        episode.asked = None
        getting = asyncio.create_task(episode.waiting.get())
        waited: list[asyncio.Task[Any]] = [getting, episode.run]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            getting.cancel()
            return {"end": ended(episode)}
        asked = episode.asked = getting.result()
        trace = next((one for one in episode.slot.traces if one.id == asked.trace), None)
        return {
            "asked": {
                "trace": asked.trace,
                "seat": trace.agent.name if trace else "",
                "trainable": trace.agent.trainable if trace else True,
                "messages": asked.body["messages"],
                "tools": asked.body.get("tools") or [],
            }
        }

    # What the agents ask.

    async def complete(self, request: web.Request) -> web.StreamResponse:
        episode = self.playing.get(request.match_info["id"])
        if episode is None:
            return web.json_response({"error": {"message": "the episode has ended"}}, status=400)
        body = await request.json()
        asked = Asked(request.headers.get("X-Session-ID", ""), body, asyncio.Future())
        await episode.waiting.put(asked)
        message = await asked.answer
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        if not body.get("stream"):
            return web.json_response(completion(body, message, reason, "message", "chat.completion"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in chunks(body, message, reason):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def refuse(self, request: web.Request) -> web.Response:
        problem = f"only chat completions are answered, not {request.path.rpartition('/v1')[2]}"
        return web.json_response({"error": {"message": problem}}, status=400)


def completion(
    body: dict[str, Any], message: dict[str, Any], reason: str | None, part: str, kind: str
) -> dict[str, Any]:
    """Return a chat completion in OpenAI's form; tokens are counted elsewhere."""
    return {
        "id": "asyncrl",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model", ""),
        "choices": [{"index": 0, part: message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


async def chunks(body: dict[str, Any], message: dict[str, Any], reason: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the completion as a stream does."""
    delta = dict(message)
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    kind = "chat.completion.chunk"
    yield {**completion(body, delta, None, "delta", kind), "usage": None}
    yield {**completion(body, {}, reason, "delta", kind), "usage": None}
    yield {**completion(body, {}, None, "delta", kind), "choices": []}


def ended(episode: Playing) -> dict[str, Any]:
    """Return rewards and errors of an episode that is over."""
    slot, run, errors = episode.slot, episode.run, []
    if run.cancelled() or run.exception() is not None:
        errors.append(
            {"type": "Crash", "message": repr(run.exception()) if not run.cancelled() else "cancelled"}
        )
    elif slot.episode is not None and not episode.env.complete(slot.episode):
        found = [*slot.episode.errors, *(error for trace in slot.traces for error in trace.errors)]
        errors = [{"type": error.type, "message": error.message} for error in found]
        errors = errors or [{"type": "Error", "message": "the episode failed, without a reason"}]
    return {
        "errors": [{**error, "infrastructure": error["type"] in INFRASTRUCTURE} for error in errors],
        "traces": {
            trace.id: {
                "reward": trace.reward,
                "rewards": {name: one.score for name, one in trace.rewards.items() if one is not None},
                "metrics": {name: value for name, value in trace.metrics.items() if value is not None},
                "truncated": trace.is_truncated or trace.is_timeout,
            }
            for trace in slot.traces
        },
    }
