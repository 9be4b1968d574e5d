"""The form of tools that chat templates accept, and what is wrong with other forms.

A tool is `{"type": "function", "function": {"name", "description", "parameters"}}`; the last two may be left out.
`parameters` is the JSON schema of an object.
"""

from __future__ import annotations

from typing import Any

TYPES: dict[str, type] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip
"""By JSON schema's names, exactly: true is no integer."""
PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Names of types that some benchmarks give in place of JSON schema's."""
FORM = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'


def check_tools(tools: Any, where: str = "tools") -> list[dict[str, Any]]:
    """Return the tools as a list. Raises `ValueError` naming the place."""
    if not isinstance(tools, list | tuple):
        raise ValueError(f"{where}: must be a list, got {type(tools).__name__}")
    for number, tool in enumerate(tools):
        place = f"{where}[{number}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise ValueError(f"{place}: must be {FORM}, got {str(tool)[:200]}")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise ValueError(f"{place}.function: must be an object with a name; a tool is {FORM}")
        check_function(function.get("name"), function.get("description"), f"{place}.function")
        check_parameters(function.get("parameters"), f"{place}.function.parameters")
    return list(tools)


def check_function(name: Any, description: Any, where: str) -> None:
    """Raise `ValueError` unless a tool has a name, and a description that is text or left out."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{where}.name: must be a text that is not empty, got {str(name)[:100]!r}")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"{where}.description: must be a text, got {str(description)[:100]!r}")


def check_parameters(schema: Any, where: str) -> None:
    """Raise `ValueError` unless this is the JSON schema of an object, or None for a tool without arguments."""
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{where}: must be a JSON schema, got {str(schema)[:100]!r}")
    if schema.get("type", "object") != "object":
        raise ValueError(f'{where}.type: must be "object", got {str(schema["type"])[:100]!r}')
    properties = {} if schema.get("properties") is None else schema["properties"]
    if not isinstance(properties, dict):
        raise ValueError(f"{where}.properties: must map names to schemas, got {str(properties)[:100]!r}")
    for name, one in properties.items():
        if not isinstance(one, dict | bool):
            raise ValueError(f"{where}.properties.{name[:64]}: must be a schema, got {str(one)[:100]!r}")
    required = [] if schema.get("required") is None else schema["required"]
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{where}.required: must be a list of names, got {str(required)[:100]!r}")


def plain_schema(value: Any) -> Any:
    """Return a schema, or what holds schemas, with JSON schema's names of types for Python's."""
    if isinstance(value, list):
        return [plain_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: PYTHON_TYPES.get(one, one) if key == "type" and isinstance(one, str) else plain_schema(one)
        for key, one in value.items()
    }
