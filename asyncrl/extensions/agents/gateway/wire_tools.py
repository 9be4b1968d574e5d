"""Tools of each API's own forms, as the functions that chat templates take, and the calls of these named back.

| form | what the policy sees | what the client gets |
|---|---|---|
| namespace (Codex's sub-agents, MCP servers) | functions `NAMESPACE__NAME` | a call with `namespace` and `name` |
| custom, free text | a function with one text, `input` | a custom call with that text |
| local_shell, shell, tool_search that the client runs | a function of that name | the API's own item |
| bash_*, text_editor_* of Anthropic | a function with the arguments that its clients read | a plain `tool_use` |

What only a vendor's servers can run, such as web_search, is left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import function_tool

JOIN = "__"
FUNCTION, CUSTOM, LOCAL_SHELL, SHELL, TOOL_SEARCH = (
    "function",
    "custom",
    "local_shell",
    "shell",
    "tool_search",
)
CUSTOM_INPUT = "input"
"""The one argument of a custom tool."""
_TEXT = {"type": "string"}
_SCHEMAS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    LOCAL_SHELL: (
        "Runs a command on the user's machine and returns its output.",
        {
            "command": {"type": "array", "items": _TEXT, "description": "Program and arguments."},
            "working_directory": _TEXT,
            "timeout_ms": {"type": "integer"},
        },
        ["command"],
    ),
    SHELL: (
        "Runs shell commands on the user's machine and returns their outputs.",
        {
            "commands": {"type": "array", "items": _TEXT, "description": "Run at the same time."},
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer"},
        },
        ["commands"],
    ),
    "bash": (
        "Runs a command in a persistent bash session and returns its output.",
        {"command": _TEXT, "restart": {"type": "boolean"}},
        [],
    ),
    "text_editor": (
        "Views, creates and edits text files.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": _TEXT,
            "file_text": _TEXT,
            "old_str": _TEXT,
            "new_str": _TEXT,
            "insert_line": {"type": "integer"},
            "insert_text": _TEXT,
            "view_range": {"type": "array", "items": {"type": "integer"}},
        },
        ["command", "path"],
    ),
}
"""Description, properties and required properties of tools that their vendors' models know without."""


@dataclass(frozen=True, slots=True)
class WireTool:
    """What a client calls a function that the policy sees."""

    kind: str
    name: str
    namespace: str = ""


@dataclass(slots=True)
class WireTools:
    """The tools of one request."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    """As chat templates take them."""
    names: dict[str, WireTool] = field(default_factory=dict)
    """By the name that the policy sees, where that does not say it all."""
    dropped: list[str] = field(default_factory=list)
    """What was left out, for counting."""

    def of(self, name: str) -> WireTool:
        """Return what the client calls a function."""
        return self.names.get(name) or WireTool(FUNCTION, name)

    def flat(self, name: Any, namespace: Any = "") -> str:
        """Return the name under which the policy sees a client's tool."""
        if not namespace:
            return str(name)
        known = (
            flat for flat, tool in self.names.items() if (tool.namespace, tool.name) == (namespace, name)
        )
        return next(known, f"{namespace}{JOIN}{name}")

    def add(self, function: dict[str, Any], tool: WireTool | None = None) -> None:
        """Offer a function; `tool` is what the client calls it where that is something else."""
        if tool is not None:
            taken = {one["function"]["name"] for one in self.functions}
            while function["function"]["name"] in taken:
                function["function"]["name"] += "_"
            self.names[function["function"]["name"]] = tool
        self.functions.append(function)


def read_responses_tools(raw: Any) -> WireTools:
    """Read `tools` of `/v1/responses`. Raises `InputError` naming the field."""
    tools = WireTools()
    for number, tool in enumerate(_list(raw)):
        _add_responses_tool(tools, tool, f"tools[{number}]")
    return tools


def _add_responses_tool(tools: WireTools, tool: Any, where: str, namespace: str = "") -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise InputError(f'{where}: must be {{"type": "function", "name": ...}}')
    if kind == FUNCTION:
        function = function_tool(tool, where, "parameters")
        if namespace:
            name = function["function"]["name"]
            function["function"]["name"] = tools.flat(name, namespace)
            tools.add(function, WireTool(FUNCTION, name, namespace))
        else:
            tools.add(function)
    elif kind == CUSTOM:
        tools.add(_custom(tool, where), WireTool(CUSTOM, str(tool.get("name")), namespace))
    elif kind == "namespace":
        inner = tool.get("tools")
        name = tool.get("name")
        if not isinstance(name, str) or not name or not isinstance(inner, list):
            raise InputError(f"{where}: a namespace must have a name and a list of tools")
        for number, one in enumerate(inner):
            _add_responses_tool(tools, one, f"{where}.tools[{number}]", name)
    elif kind in (LOCAL_SHELL, SHELL):
        tools.add(_known(kind, kind), WireTool(kind, kind))
    elif kind == TOOL_SEARCH and tool.get("execution") == "client":
        described = {
            "name": TOOL_SEARCH,
            **{k: v for k, v in tool.items() if k in ("description", "parameters")},
        }
        tools.add(function_tool(described, where, "parameters"), WireTool(TOOL_SEARCH, TOOL_SEARCH))
    else:
        tools.dropped.append(f"tool {kind[:40]}")


def read_chat_tools(raw: Any) -> WireTools:
    """Read `tools` of `/v1/chat/completions`. Raises `InputError` naming the field."""
    tools = WireTools()
    for number, tool in enumerate(_list(raw)):
        where = f"tools[{number}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        held = tool.get(kind) if isinstance(tool, dict) and isinstance(kind, str) else None
        if kind == FUNCTION and isinstance(held, dict):
            tools.add(function_tool(held, f"{where}.function", "parameters"))
        elif kind == CUSTOM and isinstance(held, dict):
            tools.add(_custom(held, f"{where}.custom"), WireTool(CUSTOM, str(held.get("name"))))
        elif isinstance(kind, str) and kind not in (FUNCTION, CUSTOM):
            tools.dropped.append(f"tool {kind[:40]}")
        else:
            raise InputError(f'{where}: must be {{"type": "function", "function": {{"name": ...}}}}')
    return tools


def read_messages_tools(raw: Any) -> WireTools:
    """Read `tools` of `/v1/messages`. Raises `InputError` naming the field."""
    tools = WireTools()
    for number, tool in enumerate(_list(raw)):
        where = f"tools[{number}]"
        if not isinstance(tool, dict):
            raise InputError(f"{where}: must be an object with a name")
        kind = tool.get("type") or CUSTOM
        known = next((name for name in ("bash", "text_editor") if str(kind).startswith(f"{name}_")), "")
        if kind == CUSTOM:
            tools.add(function_tool(tool, where, "input_schema"))
        elif known:
            tools.add(_known(known, str(tool.get("name") or known)))
        else:
            tools.dropped.append(f"tool {str(kind)[:40]}")
    return tools


def _list(raw: Any) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise InputError(f"tools: must be a list, got {type(raw).__name__}")
    return raw


def _known(kind: str, name: str) -> dict[str, Any]:
    description, properties, required = _SCHEMAS[kind]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _custom(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A tool of free text as a function; the grammar that its vendor would hold the text to is told in words."""
    description = tool.get("description")
    form = tool.get("format")
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        told = f"The input must follow this grammar ({form.get('syntax', 'lark')}):\n{form['definition']}"
        description = f"{description}\n\n{told}" if description else told
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: _TEXT}, "required": [CUSTOM_INPUT]}
    described = {"name": tool.get("name"), "description": description, "parameters": parameters}
    return function_tool(described, where, "parameters")
