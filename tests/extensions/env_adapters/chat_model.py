"""A scripted model behind OpenAI's chat completions, on loopback."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def chat_model(
    answer: Callable[[dict[str, Any]], dict[str, Any]],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve what `answer` makes of a request, `content`, `tool_calls` and `finish_reason`; yield URL and requests."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            made = answer(body)
            reason = made.pop("finish_reason", "tool_calls" if made.get("tool_calls") else "stop")
            choice = {"index": 0, "message": {"role": "assistant", **made}, "finish_reason": reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
            text = json.dumps({**reply, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", asked
        finally:
            server.shutdown()


def call(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    """Return a turn that makes one call; arguments as an object, or as a text of any kind."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": text}}],
    }


def to_the_goal(body: dict[str, Any]) -> dict[str, Any]:
    """Play gridworld: say the first direction that the newest message names."""
    return {"content": body["messages"][-1]["content"].split()[1]}


def with_calculator(body: dict[str, Any]) -> dict[str, Any]:
    """Play calculator: one malformed call, then the right one, then its result."""
    asked, *answers = (one for one in body["messages"] if one["role"] in ("user", "tool"))
    if not answers:
        return call("calc", '{"a": 1,', "bad1")
    if len(answers) == 1:
        a, op, b = asked["content"].split()[-3:]
        return call("calc", {"a": int(a), "op": op, "b": int(b)})
    return {"content": answers[-1]["content"]}
