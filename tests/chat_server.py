"""A chat-completions server in place of a language model that follows instructions, which none here can."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

from tests.waiting import wait_until


class ChatServer:
    """Answers on the loopback interface by `complete`, from a request to a completion.

    `troubles` are answered first: statuses, contents, or {} for a body that is none.
    """

    def __init__(self, complete: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.requests, self.headers, self.troubles = [], [], []
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def completions(request: Request):
            body = await request.json()
            self.requests.append(body)
            self.headers.append(request.headers.get("authorization"))
            trouble = self.troubles.pop(0) if self.troubles else None
            if isinstance(trouble, int):
                raise HTTPException(trouble, "trouble")
            answer = complete(body)
            if isinstance(trouble, str):
                answer["choices"][0]["message"]["content"] = trouble
            return answer if trouble != {} else {}

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started, self.thread.is_alive)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
