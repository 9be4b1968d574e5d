"""Open connections to MCP servers, held by one task for the length of an episode."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.env_adapters.calls import CallRefused, tool_schema
from asyncrl.extensions.env_adapters.requirements import need
from asyncrl.http_clients import goes_direct
from asyncrl.import_path import load_object

EXTRA = "mcp"
CONNECTION_CLOSED = -32000
"""JSON-RPC code by which the library says that a connection is gone."""
MAX_PAGES = 100
STDIO_KEYS = {"command", "args", "env", "cwd"}
HTTP_KEYS = {"url", "token_env"}


class McpLink:
    """Connections to servers by name; a tool is called `tool` with one server, `server__tool` with several."""

    def __init__(self, servers: Mapping[str, Any], call_timeout_s: float) -> None:
        self.servers, self.call_timeout_s = dict(servers), call_timeout_s
        self.tools: dict[str, dict[str, Any]] = {}
        """Schemas by the name the model uses."""
        self._routes: dict[str, tuple[Any, str]] = {}
        self._stop = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and list the tools. Raises `ConfigError` for a wrong target, `InfrastructureError` otherwise."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The library's contexts must be exited by the task that entered them; steps come from other tasks.
        self._holder = asyncio.create_task(self._hold(ready))
        await ready

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; return the library's result. Raises `CallRefused`, or `InfrastructureError` when it is gone."""
        client, tool = self._routes[name]
        errors = need("mcp.shared.exceptions", EXTRA)
        try:
            async with asyncio.timeout(self.call_timeout_s):
                return await client.call_tool(tool, arguments)
        except TimeoutError as error:
            raise CallRefused(f"{name}: no answer within {self.call_timeout_s:g} s") from error
        except errors.MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise InfrastructureError(f"MCP server of tool {name!r} is gone: {error}") from error
            raise CallRefused(f"{name}: {error.error.message}") from error
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(f"MCP server of tool {name!r} is gone: {error!r}") from error

    async def close(self) -> None:
        """Close every connection and end the processes that were started."""
        if self._holder is not None:
            self._stop.set()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._holder

    async def _hold(self, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, target in self.servers.items():
                    await self._connect(stack, name, target)
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            if isinstance(error, ConfigError):
                ready.set_exception(error)
            else:
                ready.set_exception(InfrastructureError(f"MCP: cannot connect: {_first(error)!r}"))

    async def _connect(self, stack: AsyncExitStack, name: str, target: Any) -> None:
        library = need("mcp", EXTRA)
        client = await stack.enter_async_context(library.Client(await _target(stack, name, target)))
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                known = tool.name if len(self.servers) == 1 else f"{name}__{tool.name}"
                self.tools[known] = tool_schema(known, tool.description, tool.input_schema)
                self._routes[known] = (client, tool.name)
            cursor = page.next_cursor
            if cursor is None:
                return
        raise InfrastructureError(f"MCP server {name!r}: its list of tools does not end")


async def _target(stack: AsyncExitStack, name: str, target: Any) -> Any:
    """Return what the library's client connects to. Raises `ConfigError` naming the setting."""
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        return target
    if isinstance(target, str):
        made = load_object(f"servers.{name}", target)
        return made() if not hasattr(made, "list_tools") and callable(made) else made
    if isinstance(target, Mapping) and "command" in target and set(target) <= STDIO_KEYS:
        return need("mcp", EXTRA).StdioServerParameters(**target)
    if isinstance(target, Mapping) and "url" in target and set(target) <= HTTP_KEYS:
        return await _with_token(stack, name, target)
    raise ConfigError(
        f"servers.{name}: must be an import path, a URL, {{command, args, env, cwd}} or {{url, token_env}}, "
        f"got {target!r}"
    )


async def _with_token(stack: AsyncExitStack, name: str, target: Mapping[str, Any]) -> Any:
    variable = target.get("token_env", "")
    if not variable:
        return target["url"]
    if not os.environ.get(variable):
        raise ConfigError(f"servers.{name}.token_env: environment variable {variable} is not set")
    headers = {"Authorization": f"Bearer {os.environ[variable]}"}
    made = need("httpx2", EXTRA).AsyncClient(headers=headers, trust_env=not goes_direct(target["url"]))
    http = await stack.enter_async_context(made)
    return need("mcp.client.streamable_http", EXTRA).streamable_http_client(target["url"], http_client=http)


def _first(error: BaseException) -> BaseException:
    """Return the first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
