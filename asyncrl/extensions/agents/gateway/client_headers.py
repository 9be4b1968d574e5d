"""What agents say of themselves in headers: which program asks, and which of its sub-agents.

| program | its conversation | a sub-agent's caller | a sub-agent |
|---|---|---|---|
| Codex | `thread-id` | `x-codex-parent-thread-id` | `x-openai-subagent`, or the caller's header |
| Claude Code | `x-claude-code-agent-id` | | the same header, which the main agent does not send |
| opencode | `x-session-id` | `x-parent-session-id` | the caller's header |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SUB_AGENT = "subagent"
"""Name of a sub-agent whose program does not name it."""
UNKNOWN = "unknown client"
MAX_LENGTH = 200
_THREADS = (b"thread-id", b"x-claude-code-agent-id", b"x-session-id")
_CALLERS = (b"x-codex-parent-thread-id", b"x-parent-session-id")
_NAMES = (b"x-openai-subagent",)
_OWN = (b"x-claude-code-agent-id",)
_PROGRAM = re.compile(r"[\w.@/-]{1,60}?(?: [\w.@/-]{1,30})??[/ ]\d[\w.+-]{0,30}")


@dataclass(frozen=True, slots=True)
class ClientHeaders:
    """Who asks."""

    agent: str = ""
    """Name of the sub-agent, "" for the main agent."""
    thread: str = ""
    """The program's own id of the conversation."""
    caller_thread: str = ""
    """That of the conversation that started this one."""
    program: str = UNKNOWN
    """Program and version."""


def read_client_headers(
    headers: Mapping[bytes, bytes], own: Mapping[str, str] | None = None
) -> ClientHeaders:
    """Read the headers of a request; names in lower case.

    own: names of further headers by what they say: "thread", "caller", "agent".
    """
    named = {what: (name.lower().encode(),) for what, name in (own or {}).items()}

    def first(names: tuple[bytes, ...]) -> str:
        found = next((headers[name] for name in names if headers.get(name)), b"")
        return found.decode("latin-1")[:MAX_LENGTH]

    caller = first(named.get("caller", ()) + _CALLERS)
    agent = first(named.get("agent", ()) + _NAMES) or (SUB_AGENT if caller or first(_OWN) else "")
    program = _PROGRAM.match(headers.get(b"user-agent", b"").decode("latin-1"))
    return ClientHeaders(
        agent, first(named.get("thread", ()) + _THREADS), caller, program[0] if program else UNKNOWN
    )
