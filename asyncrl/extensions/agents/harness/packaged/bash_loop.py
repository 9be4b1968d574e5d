"""A plain agent: one tool that runs shell commands, until a turn calls nothing. Needs the Python of the sandbox alone.

Arguments: the task. It asks OPENAI_BASE_URL; SYSTEM, TURNS, COMMAND_S and SHOWN in the environment change its defaults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

SYSTEM = "Do the task with tool shell, which runs bash commands. When it is done, say done."
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = {"name": "shell", "description": "Run a bash command.", "parameters": PARAMETERS}
TOO_LONG = "context_length_exceeded"


def main() -> int:
    turns = int(os.environ.get("TURNS", "0")) or 1000
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": os.environ.get("SYSTEM", SYSTEM)},
        {"role": "user", "content": sys.argv[1]},
    ]
    for _ in range(turns):
        message = ask(messages)
        if message is None:
            return 0
        messages.append(message)
        print(json.dumps(message), flush=True)
        calls = message.get("tool_calls") or []
        if not calls:
            return 0
        for call in calls:
            result = answer(call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return 0


def ask(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the next turn; None where there is no room for one, which ends the work."""
    body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    for attempt in range(3):
        try:
            with urllib.request.urlopen(request) as response:
                return dict(json.load(response)["choices"][0]["message"])
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            if error.code == 400 and (TOO_LONG in said or "calls" in said):
                return None
            if error.code < 500 or attempt == 2:
                raise
        except (OSError, ValueError):
            if attempt == 2:
                raise
    return None


def answer(function: dict[str, str]) -> str:
    """Run the command of a call; what is wrong with it is the answer."""
    try:
        command = json.loads(function["arguments"])["command"]
        if function["name"] != "shell" or not isinstance(command, str):
            raise ValueError("shell takes one text, command")
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"
    limit_s, shown = float(os.environ.get("COMMAND_S", "30")), int(os.environ.get("SHOWN", "2000"))
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"error: the command took longer than {limit_s:g} s"
    text = done.stdout.decode("utf-8", "replace").rstrip("\n")
    if len(text) > shown:
        text = f"{text[: shown // 2]}\n... {len(text) - shown} characters left out ...\n{text[-shown // 2 :]}"
    return (
        (text or "(no output)")
        if done.returncode == 0
        else f"{text}\n(exit status {done.returncode})".strip()
    )


if __name__ == "__main__":
    sys.exit(main())
