"""Adapters in the worker processes of the environment service."""

import asyncio
import os
from pathlib import Path

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.services.env.workers.pool import WorkerPool
from asyncrl.types import Task
from tests.packages import needs

needs("mcp", "textarena")


@pytest.mark.slow
def test_sessions_of_adapters_live_in_worker_processes_with_their_tools(monkeypatch):
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))

    async def play():
        host = EnvHost(runtime=WorkerPool(1))
        await host.start()
        try:
            mcp = await host.open(
                Task("a", "mcp", data={"prompt": "Sell.", "number": 2}),
                {"servers": "mcp_shop:make_server", "reward": "mcp_shop:reward"},
            )
            games = [
                await host.open(Task(str(seed), "textarena", seed), {"id": "2048-v0", "players": 1})
                for seed in (1, 1)
            ]
            calls = (ToolCall("c", "count", {"fruit": "pears"}),)
            answer = await host.step(mcp.id, 0, Action("", calls), 30)
            moves = [await host.step(game.id, 0, Action("up"), 30) for game in games]
            return [t["function"]["name"] for t in mcp.opened.tools], answer, moves
        finally:
            await host.close_all()

    tools, answer, moves = asyncio.run(asyncio.wait_for(play(), 120))
    assert "count" in tools
    assert answer.messages[0]["content"] == "5"
    assert moves[0].messages == moves[1].messages != []
