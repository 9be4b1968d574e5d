"""Components of a judge's reward that functions of the user's own score, as `data.reward` does (docs/rewards.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from asyncrl.extensions.judge.questions import JudgeRequest
from asyncrl.extensions.judge.settings import ComponentConfig
from asyncrl.rewards.protocol import Completion
from asyncrl.rewards.user_function import UserFunction
from asyncrl.rows.scan import MESSAGES


class Functions:
    """The functions of components, by name. Raises `ConfigError` for one that is not there."""

    def __init__(self, components: Mapping[str, ComponentConfig]) -> None:
        self.functions = {
            name: UserFunction(one.function, f"judge.components.{name}.function")
            for name, one in components.items()
        }

    async def score(self, request: JudgeRequest) -> dict[str, float]:
        """Return what each gives the policy's last answer. Raises `NotJudged`."""
        if not self.functions:
            return {}
        completion = last_answer(request)
        found = await asyncio.gather(*(one.score([completion]) for one in self.functions.values()))
        return {name: score.total for name, (score,) in zip(self.functions, found, strict=True)}

    def close(self) -> None:
        """End their processes."""
        for one in self.functions.values():
            one.close()


def last_answer(request: JudgeRequest) -> Completion:
    """Return the policy's last message with what came before it; an empty answer where there is none."""
    messages = list(request.messages)
    place = max(
        (place for place, message in enumerate(messages) if message["role"] == "assistant"),
        default=len(messages),
    )
    last = messages[place] if place < len(messages) else {}
    content, reasoning = last.get("content") or "", last.get("reasoning_content") or ""
    row = {key: value for key, value in request.task.data.items() if key != MESSAGES}
    return Completion(messages[:place], str(content), str(reasoning), row)
