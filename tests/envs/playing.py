"""Playing environments whose `step` runs programs in the sandbox."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from asyncrl.env.protocol import Action, Step
from asyncrl.sandbox.jail.client import LauncherClient


def play(env: Any, *actions: Action) -> list[Step]:
    """Step through the actions in one event loop; return the steps."""

    async def whole() -> list[Step]:
        try:
            opening = env.reset()
            if inspect.isawaitable(opening):
                await opening
            return [await env.step(action) for action in actions]
        finally:
            await env.close()
            await LauncherClient.close_shared()

    return asyncio.run(whole())
