"""A stand-in for a judge: a real HTTP server that answers as a script says.

python -m tests.extensions.judge.server PORT     a process of its own that gives every conversation 5, slowly
"""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request, Response

from tests.app_thread import free_port


class Endpoint:
    """Answers as `script` says, call by call; the last entry is repeated."""

    def __init__(self, *script):
        self.script, self.bodies, self.keys = list(script), [], []
        self.app = FastAPI()
        self.app.post("/score")(self.answer)
        self.app.post("/v1/chat/completions")(self.answer)

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        make = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        status, text = make(body)
        return Response(text, status)


@contextmanager
def serving(endpoint, port=0):
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(endpoint.app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            pass
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def chat(text):
    """Reply with a text, or with what a function makes of the prompt."""

    def answer(body):
        said = text(body["messages"][0]["content"]) if callable(text) else text
        return 200, json.dumps({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]})

    return answer


def start_process(port, pause_s=0.0):
    """Start the stand-in as a process, to be killed; it may not be listening yet."""
    return subprocess.Popen([sys.executable, "-m", "tests.extensions.judge.server", str(port), str(pause_s)])


def main():
    app, answer = FastAPI(), chat("5")

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        await asyncio.sleep(float(sys.argv[2]))
        status, text = answer(body)
        return Response(text, status)

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
