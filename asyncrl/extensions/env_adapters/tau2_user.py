"""tau2's user, played by a language model behind any OpenAI-compatible endpoint. The user may have tools too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from asyncrl.env.chat_endpoint import ChatEndpoint
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.env_adapters.tau2_domain import Made, answer_of
from asyncrl.types import Message

GREETING = "Hi! How can I help you today?"
"""What the user is greeted with, as in tau2; the agent's conversation begins with the user's answer."""
GUIDELINES = """\
You play a customer who talks to a company's agent. You are given a scenario below.

- Write one message at a time, as a customer would, in words of your own.
- Follow the scenario. Whatever it does not say you do not know: invent nothing.
- Say at first only why you are here. Give details when the agent asks for them.
- When what the scenario wants is done, write ###STOP###.
- When the agent has handed you over to somebody else, write ###TRANSFER###.
- When the scenario does not say enough to go on, write ###OUT-OF-SCOPE###."""
GUIDELINES_FOR_TOOLS = """
- Your tools act on your own device and account. Use one when the agent asks for it, or to answer what it asks, and
  otherwise none. A turn has either a tool call or a message; the agent sees only messages.
- Tell what your tools returned, never a result that you made up. When a call fails, correct it and call again.
- When you are asked for several things at once, ask for one at a time."""
MAX_REQUESTS = 32
"""For one message: the user's calls before it, and answers without a word."""
OWN_FIELDS = ("messages", "model", "n", "stream", "tools")
"""The fields of a request that `user_options` may not set."""


class ChatUser:
    """The user of one episode. Keeps its own conversation, in which the agent is the user.

    made: the calls of the episode, to which the user's are added.
    """

    def __init__(
        self, endpoint: ChatEndpoint, fields: dict[str, Any], system: str, environment: Any, made: list[Made]
    ) -> None:
        self.endpoint, self.fields, self.environment, self.made = endpoint, fields, environment, made
        self.names = [tool["function"]["name"] for tool in fields.get("tools", ())]
        self.history: list[Message] = [{"role": "system", "content": system}]

    async def respond(self, messages: Sequence[Message]) -> str:
        """Return the user's next message to the agent, after the calls that the user makes before it.

        messages: the conversation so far as the agent has it; empty at the beginning. Raises `EnvironmentFailure` and
        `InfrastructureError`.
        """
        text = str(messages[-1].get("content") or "(says nothing)") if messages else GREETING
        self.history.append({"role": "user", "content": text})
        try:
            for _ in range(MAX_REQUESTS):
                reply = await self.endpoint.ask({**self.fields, "messages": self.history})
                calls, content = reply.get("tool_calls") or [], str(reply.get("content") or "").strip()
                if calls:
                    self.history.append({"role": "assistant", "content": "", "tool_calls": calls})
                    self.history += [self._use(call) for call in calls]
                elif content:
                    self.history.append({"role": "assistant", "content": content})
                    return content
        finally:
            await self.endpoint.close()
        raise EnvironmentFailure(f"tau2: the user wrote no message in {MAX_REQUESTS} requests")

    def _use(self, call: Any) -> Message:
        """Make a call of the user's. What the tool refuses is an answer to the user, as it is to the agent."""
        try:
            call_id, name = str(call["id"]), str(call["function"]["name"])
            arguments = json.loads(call["function"]["arguments"] or "{}")
            if not isinstance(arguments, dict):
                raise TypeError("its arguments are no object")
        except (ValueError, TypeError, KeyError) as error:
            raise EnvironmentFailure(
                f"tau2: the user's model made a malformed call: {call!r:.300}"
            ) from error
        text = answer_of(self.environment, self.environment.use_user_tool, self.names, name, arguments)
        self.made.append(Made("user", name, arguments))
        return {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return `user_options`. Raises `ConfigError` for what is not for the configuration to set."""
    for name in OWN_FIELDS:
        if name in options:
            raise ConfigError(f"env.config.user_options.{name}: is set by the adapter; leave it out")
    return options


def instructions(guidelines: str, scenario: Any) -> str:
    """Return the user's system message."""
    text = scenario if isinstance(scenario, str) else json.dumps(scenario, indent=1, default=str)
    return f"{guidelines}\n\n<scenario>\n{text}\n</scenario>"
