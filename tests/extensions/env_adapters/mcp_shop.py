"""A small MCP server for the tests: a stock of fruit. Run as a program it speaks on stdio, or HTTP with a port."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def make_server():
    stock = {"apples": 3, "pears": 5}
    waiting = asyncio.Event()
    server = MCPServer("shop")

    @server.tool()
    def count(fruit: str) -> int:
        """How many of a fruit there are."""
        if fruit not in stock:
            raise ToolError(f"no {fruit} here")
        return stock[fruit]

    @server.tool()
    def sell(fruit: str, number: int) -> str:
        """Sell some of a fruit."""
        stock[fruit] -= number
        return f"sold {number} {fruit}"

    @server.tool()
    async def wait_for_ring() -> str:
        """Answers once `ring` is called."""
        await waiting.wait()
        return "rung"

    @server.tool()
    async def ring() -> str:
        """Lets `wait_for_ring` answer."""
        waiting.set()
        return "ringing"

    @server.tool()
    def crash() -> str:
        """Ends the server."""
        os._exit(3)

    @server.tool()
    def story(length: int) -> str:
        """A long text."""
        return "x" * length

    return server


def tasks(split):
    offset = 0 if split == "train" else 1
    for number in range(offset, 6, 2):
        yield {"prompt": f"Sell {number} pears, then tell how many are left.", "number": number}


def oracle(messages, task):
    number = task.data["number"]
    made = [m for m in messages if m["role"] == "tool"]
    if len(made) == 2:
        return {"role": "assistant", "content": made[1]["content"]}
    calls = [("sell", {"fruit": "pears", "number": number}), ("count", {"fruit": "pears"})]
    name, arguments = calls[len(made)]
    function = {"name": name, "arguments": arguments}
    call = {"type": "function", "id": "c", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def reward(episode):
    left = await episode.call("count", {"fruit": "pears"})
    sold = left == str(5 - episode.task.data["number"])
    return float(sold and episode.answer == left), {"sold": float(sold)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_server().run("streamable-http", port=int(sys.argv[1]))
    else:
        make_server().run("stdio")
