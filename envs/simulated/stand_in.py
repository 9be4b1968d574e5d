"""Answers a simulator's requests with rules, so that the environment can be tried and tested without a model.

It reads the same chat-completions request that a model gets, and replies in the same form.
"""

from __future__ import annotations

import json
import re
from typing import Any

MODEL = "stand-in"


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """Return a chat completion for a request of this environment."""
    prompt, last = request["messages"][0]["content"], request["messages"][-1]["content"]
    facts = dict(re.findall(r"^(\w+): (.+)$", prompt, re.MULTILINE))
    parts = facts["parts"].split(", ")
    found = re.search(r"\b(measure|replace)\s+(\w+)", last.lower())
    reply: dict[str, Any] = {"observation": "Nothing happens.", "replaced": None}
    if found and found.group(2) in parts:
        part = found.group(2)
        if found.group(1) == "replace":
            reply = {"observation": f"The {part} is replaced.", "replaced": part}
        else:
            bad = parts.index(facts["fault"]) <= parts.index(part)
            reply["observation"] = f"The signal behind the {part} is {'bad' if bad else 'good'}."
    message = {"role": "assistant", "content": json.dumps(reply)}
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "model": request.get("model", MODEL),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
