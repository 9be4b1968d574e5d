"""The real OpenEnv package on the other side, in a process of its own.

    openenv_peer.py server guess|tools PORT
    openenv_peer.py client URL [SEED]        reads actions as JSON lines, writes results as JSON lines

`fastmcp`, which OpenEnv imports for its MCP parts, needs an older `mcp` than ours; those parts are not used here,
so a placeholder stands in where it is missing.
"""

import importlib.util
import json
import os
import sys
import types
from typing import Any


class Placeholder(types.ModuleType):
    """Any name of it is an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if importlib.util.find_spec("fastmcp") is None:
    for missing in ("fastmcp", "fastmcp.client", "fastmcp.client.client"):
        sys.modules[missing] = Placeholder(missing)

from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.mcp_types import (  # noqa: E402
    CallToolObservation,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402


class Guess(Action):
    guess: int


class Hint(Observation):
    text: str
    tries: int = 0


class GuessNumber(Environment):
    """Find seed % 10. A hint costs 0.1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret, self.tries = (seed or 0) % 10, 0
        return Hint(text=f"guess a digit, {kwargs.get('name', 'friend')}")

    def step(self, action, timeout_s=None, **kwargs):
        self.tries += 1
        if action.guess == 13:
            raise RuntimeError("thirteen is unlucky")
        if action.guess == self.secret:
            return Hint(text="right", tries=self.tries, done=True, reward=1.1)
        text = "higher" if self.secret > action.guess else "lower"
        return Hint(text=text, tries=self.tries, reward=-0.1)

    @property
    def state(self):
        return State(step_count=self.tries)


class Counter(Environment):
    """Tools: `add` adds to a sum and rewards reaching 10."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.total = 0
        return Observation(metadata={"text": "reach 10"})

    def step(self, action, timeout_s=None, **kwargs):
        if action.type == "list_tools":
            schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
            return ListToolsObservation(tools=[Tool(name="add", description="Add it.", input_schema=schema)])
        self.total += action.arguments["number"]
        reward = float(self.total == 10)
        return CallToolObservation(
            tool_name="add", result={"data": str(self.total)}, reward=reward, done=bool(reward)
        )

    @property
    def state(self):
        return State()


def serve(kind: str, port: int) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    made: dict[str, Any] = {
        "guess": (GuessNumber, Guess, Hint),
        "tools": (Counter, Action, Observation),
    }
    app = create_fastapi_app(*made[kind], max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def play(url: str, seed: int | None) -> None:
    from openenv.core.generic_client import GenericEnvClient

    def show(result):
        fields = {"observation": result.observation, "reward": result.reward, "done": result.done}
        print(json.dumps(fields), flush=True)

    headers = {"Authorization": f"Bearer {os.environ['ASYNCRL_TOKEN']}"}
    with GenericEnvClient(base_url=url, headers=headers).sync() as env:
        show(env.reset(seed=seed) if seed is not None else env.reset())
        for line in sys.stdin:
            action = json.loads(line)
            if action == "state":
                print(json.dumps(env.state()), flush=True)
                continue
            try:
                show(env.step(action))
            except Exception as error:
                print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        play(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
