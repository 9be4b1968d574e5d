"""An environment as an OpenEnv server, so that OpenEnv clients can play it.

    asyncrl serve openenv --env NAME [--port N]

A WebSocket at `/ws` is one session, in OpenEnv's protocol: `reset`, `step`, `state`, `close`. An action is
{"message": text}, {"content", "tool_calls": [{"name", "arguments"}]}, or one of OpenEnv's own for tools:
{"type": "list_tools"} and {"type": "call_tool", "tool_name", "arguments"}.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect

from asyncrl.credentials import Access, Credentials, own_credentials
from asyncrl.env.host import EnvHost, HostedSession
from asyncrl.env.protocol import Env
from asyncrl.env.registry import load_env
from asyncrl.errors import InputError
from asyncrl.extensions.openenv.messages import (
    ACTION_SCHEMA,
    OBSERVATION_SCHEMA,
    STATE_SCHEMA,
    error_answer,
    observation_answer,
    read_action,
    read_message,
    reset_task,
)
from asyncrl.services.http.app import create_app, serve
from asyncrl.types import Task

STEP_TIMEOUT_S = 60.0


def create_openenv_app(name: str, config: dict[str, Any], host: EnvHost, access: Access) -> FastAPI:
    """Return the app that serves environment `name`, made with `config`, to OpenEnv clients.

    A reset without seed, task index or data takes the next task of the train split. Raises `ConfigError` for an
    unknown environment.
    """
    env_class = load_env(name)

    @asynccontextmanager
    async def sessions() -> AsyncIterator[None]:
        await host.start()
        yield
        await host.close_all()

    app = create_app(
        f"asyncrl {name} as OpenEnv server",
        access,
        background={"session reaper": host.reap},
        lifespan=sessions,
    )
    app.state.websockets = "websockets-sansio"
    facade = Facade(name, env_class, config, host)
    _add_information(app, name, env_class)

    @app.websocket("/ws")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await facade.talk(websocket)

    return app


def _add_information(app: FastAPI, name: str, env_class: type[Env]) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> dict[str, str]:
        return {"name": name, "description": (env_class.__doc__ or "").strip()}

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA}

    @app.post("/reset")
    @app.post("/step")
    async def stateless() -> None:
        raise InputError("requests over HTTP share no session; use the WebSocket at /ws")


class Facade:
    """Translates between OpenEnv's messages and sessions of a host."""

    def __init__(self, name: str, env_class: type[Env], config: dict[str, Any], host: EnvHost) -> None:
        self.name, self.env_class, self.config, self.host = name, env_class, config, host
        self._train: Iterator[Task] = env_class.tasks("train", name, **config)

    async def talk(self, websocket: WebSocket) -> None:
        """Answer one socket until it closes; its session ends with it."""
        connection = Connection(self)
        try:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                answer = await connection.answer(message.get("text"))
                if answer is None:
                    break
                # In ASCII: what an environment quotes may hold half a surrogate pair, which no UTF-8 has.
                await websocket.send_text(json.dumps(answer))
            await websocket.close()
        except WebSocketDisconnect:
            pass
        finally:
            await connection.end()

    async def task(self, data: dict[str, Any]) -> Task:
        """Return the task that a reset asks for. Raises `InputError`."""
        chosen = reset_task(data, self.name)
        if isinstance(chosen, Task):
            return chosen
        split, index = chosen
        if index is None:
            task = next(self._train, None)
        else:
            # Counting up to it may take a while, during which other sockets are answered.
            task = await asyncio.to_thread(self._counted, split, index)
        if task is None:
            raise InputError(f"task_index: split {split!r} has no task {index}")
        return task

    def _counted(self, split: str, index: int) -> Task | None:
        tasks = self.env_class.tasks(split, self.name, **self.config)
        return next(itertools.islice(tasks, index, None), None)


class Connection:
    """One socket: at most one session at a time."""

    def __init__(self, facade: Facade) -> None:
        self.facade = facade
        self.session: HostedSession | None = None
        self.steps, self.over = 0, True

    async def answer(self, text: str | None) -> dict[str, Any] | None:
        """Return the answer to one message, None to `close`. text: None for one that is bytes."""
        try:
            kind, data = read_message(text)
            if kind == "close":
                return None
            if kind == "state":
                return {"type": "state", "data": self._state()}
            return await (self._reset(data) if kind == "reset" else self._step(data))
        except Exception as error:
            return error_answer(error)

    async def end(self) -> None:
        """End the session, if there is one."""
        session, self.session = self.session, None
        if session is not None:
            await self.facade.host.close(session.id)

    async def _reset(self, data: dict[str, Any]) -> dict[str, Any]:
        await self.end()
        task = await self.facade.task(data)
        self.session = await self.facade.host.open(task, self.facade.config)
        self.steps, self.over = 0, False
        opened = self.session.opened
        return observation_answer(opened.messages, opened.tools, None, False, {"task_id": task.id})

    async def _step(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.session is None or self.over:
            raise InputError("the episode is over or has not started: send reset")
        tools = self.session.opened.tools
        action = read_action(data)
        if action is None:
            return observation_answer([], tools, 0.0, False, {})
        step = await self.facade.host.step(
            self.session.id, self.steps, action, self.session.step_limit_s(STEP_TIMEOUT_S)
        )
        self.steps += 1
        self.over = step.done or self.steps >= self.session.opened.max_turns
        details = {
            "success": step.success,
            "components": step.components,
            "truncated": step.truncated or (self.over and not step.done),
        }
        tool = data.get("tool_name") if data.get("type") == "call_tool" else None
        return observation_answer(step.messages, tools, step.reward, self.over, details, tool)

    def _state(self) -> dict[str, Any]:
        session = self.session
        return {"episode_id": session.id if session else None, "step_count": self.steps, "done": self.over}


def serve_openenv(
    name: str,
    config: dict[str, Any],
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
    max_sessions: int = 1024,
) -> None:
    """Serve environment `name` to OpenEnv clients until told to stop."""
    # A session ends with its socket, however long the client thinks.
    sessions = EnvHost(max_sessions, lease_s=math.inf)
    access = (credentials or own_credentials()).access("openenv")
    serve(create_openenv_app(name, config, sessions, access), host, port, ready_file, advertise=advertise)
