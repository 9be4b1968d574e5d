"""Plays episodes in a Python that has another library, for an adapter, which starts it; see `elsewhere.py`.

    PYTHON -I asyncrl/extensions/env_adapters/episode_service.py asyncrl/extensions/env_adapters/PLAYER.py

On standard input and output, JSON lines: `{"tasks": SOURCE, "from": n, "count": n}` is answered by what the player's
`tasks` returns, and `{"address": true}` by `{"port", "key"}` of an HTTP service on loopback, which plays. There `POST
/episodes` starts an episode, whose id the client chooses, and answers with what the policy is asked first. `POST
/episodes/ID` gives the policy's message and answers with what follows. `DELETE /episodes/ID` ends it. An answer with
`refused` says why nothing follows. This file and the players import nothing of asyncrl.
"""

import asyncio
import importlib.util
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

# What a configuration names is found in the folder that asyncrl was started in, after what is installed: a file there
# may have the name of a module that a library means. Processes that a library starts find it there, too.
sys.path.append(os.getcwd())
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])

from aiohttp import web

MAX_BODY_BYTES = 64 * 2**20

__all__ = ["EpisodeService"]


class Player(Protocol):
    """What a player's file has as `Player()`."""

    port: int
    """Of the service, once it listens."""

    def routes(self) -> list[Any]:
        """Return routes of its own."""

    def tasks(self, source: dict[str, Any], first: int, count: int) -> dict[str, Any]:
        """Return `rows`, the names of the tasks there are of `count` from `first` on. Called in a thread."""

    async def open(self, id: str, body: dict[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        """Start an episode; return what is asked first, or {} where whoever asked is `gone` meanwhile."""

    async def step(self, id: str, message: dict[str, Any]) -> dict[str, Any]:
        """Take the policy's message; return what follows."""

    async def close(self, id: str) -> None:
        """End an episode where it is still being played."""


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: " + "; ".join(line.strip() for line in str(error).splitlines())


class EpisodeService:
    """A player's episodes over HTTP on loopback."""

    def __init__(self, player: Player) -> None:
        self.player, self.key, self.port = player, secrets.token_hex(16), 0

    async def start(self) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/episodes", self.open),
                web.post("/episodes/{id}", self.step),
                web.delete("/episodes/{id}", self.close),
                *self.player.routes(),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.player.port = runner.addresses[0][1]

    async def open(self, request: web.Request) -> web.Response:
        self._check(request)
        body = await request.json()
        try:
            opened = await self.player.open(body["id"], body, lambda: request.transport is None)
        except Exception as error:
            opened = {"refused": reason(error)}
        return web.json_response(opened)

    async def step(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(await self.player.step(request.match_info["id"], await request.json()))

    async def close(self, request: web.Request) -> web.Response:
        self._check(request)
        await self.player.close(request.match_info["id"])
        return web.json_response({})

    def _check(self, request: web.Request) -> None:
        if not secrets.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self.key}"):
            raise web.HTTPUnauthorized


def load_player(path: str) -> Player:
    """Return the player of a file. Its folder is not searched: it has files with the names of libraries."""
    spec = importlib.util.spec_from_file_location("asyncrl_player", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    player: Player = module.Player()
    return player


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    # What libraries print is no answer.
    os.dup2(2, 1)
    player = load_player(sys.argv[1])
    loop = asyncio.new_event_loop()
    service = EpisodeService(player)
    loop.run_until_complete(service.start())

    def answer() -> None:
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if "tasks" in asked:
                try:
                    found = player.tasks(asked["tasks"], asked["from"], asked["count"])
                except Exception as error:
                    found = {"refused": reason(error)}
            else:
                found = {"port": service.port, "key": service.key}
            print(json.dumps(found), file=out, flush=True)
        # Whoever started this is gone.
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    loop.run_forever()


if __name__ == "__main__":
    main()
