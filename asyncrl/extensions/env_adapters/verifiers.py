"""Environments of the verifiers library: its datasets, replies and rubrics, with our policy's turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AgentError, ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.calls import assistant_message, plain, row_data
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.extensions.env_adapters.verifiers_load import load_environment, row, rows
from asyncrl.types import Message, Task

TURN_LIMIT = "max_turns_reached"


class Verifiers(AdapterEnv):
    """Play an environment of the verifiers library.

    It is what `verifiers.load_environment(id, **args)` returns, a `MultiTurnEnv` or a subclass. Tasks are the
    rows of its dataset and evaluation dataset. The reward is its rubric's, given with the last turn; metrics become
    components; success is a reward of at least `success_at`. An environment is loaded once in a process and shared
    by its episodes. `max_turns` = 0 takes the environment's own limit, or 16 without one.
    """

    library: ClassVar[str] = "verifiers"
    extra: ClassVar[str] = "verifiers"
    required: ClassVar[tuple[str, ...]] = ("id",)

    def __init__(
        self,
        task: Task,
        id: str = "",
        args: dict[str, Any] | None = None,
        max_turns: int = 0,
        success_at: float = 1.0,
    ) -> None:
        super().__init__(task)
        if not id:
            raise ValueError("id: must name a verifiers environment")
        self.id, self.args = id, dict(args or {})
        self.limit, self.success_at = max_turns, success_at
        self.turn = 0
        self.env: Any = None
        self.state: Any = None
        self.shown: list[Message] = []

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield one task per row of the split's dataset."""
        if not config.get("id"):
            raise ConfigError(f"env.config.id: environment {env!r} needs it")
        made = load_environment(config["id"], config.get("args") or {})
        for index in rows(made, split):
            data = row_data(index, split, own=made.eval_dataset is not None)
            yield Task(f"{split}-{index}", env, seed=index, split=split, data=data)

    async def reset(self) -> list[Message]:
        """Load the environment and give the row's prompt."""
        self.env = await asyncio.to_thread(load_environment, self.id, self.args)
        entry = row(self.env, self.task.split, self.task.data.get("row", self.task.seed))
        own = self.env.max_turns if self.env.max_turns > 0 else type(self).max_turns
        self.max_turns = self.limit or own
        self.state = await self.env.init_state(entry, None, "policy", {})
        try:
            self.state = await self.env.setup_state(self.state)
            self.shown = list(await self.env.get_prompt_messages(self.state))
        except Exception as error:
            raise self._sorted(error) from error
        self.tools = list(self.state["oai_tools"] or [])  # type: ignore[misc]
        return plain(self.shown)

    async def step(self, action: Action) -> Step:
        """Add the turn, let the environment answer, and score the episode when the environment ends it."""
        self.turn += 1
        message = assistant_message(action, arguments_as_text=True)
        try:
            await self._add(message)
            malformed = action.error_messages()
            if malformed and not action.tool_calls:
                # The library would treat a turn without calls as the last one.
                if self.turn >= self.max_turns:
                    return await self._finish(truncated=True)
                return self._go_on([*self.shown, message], malformed)
            if await self.env.is_completed(self.state):
                return await self._finish(await self._cut_short())
            shown = list(await self.env.get_prompt_messages(self.state))
            if await self.env.is_completed(self.state):
                return await self._finish(truncated=False)
            if self.turn >= self.max_turns:
                return await self._finish(truncated=True)
        except Exception as error:
            raise self._sorted(error) from error
        before = [*self.shown, message]
        if shown[: len(before)] != before:
            raise EnvironmentFailure(
                f"verifiers environment {self.id!r} rewrites what was said; not supported"
            )
        return self._go_on(before, [*shown[len(before) :], *malformed])

    async def close(self) -> None:
        """Let the environment free the episode's resources."""
        if self.state is not None and not self.state["is_completed"]:
            await self.env._cleanup(self.state)

    def _go_on(self, before: list[Message], new: list[Message]) -> Step:
        self.shown = [*before, *new]
        return Step(plain(new))

    async def _add(self, message: Message) -> None:
        step = {
            "prompt": self.shown,
            "completion": [message],
            "response": None,
            "tokens": None,
            "reward": None,
            "advantage": None,
            "is_truncated": False,
            "trajectory_id": self.state["trajectory_id"],
            "extras": {},
        }
        await self.env.add_trajectory_step(self.state, step)

    async def _cut_short(self) -> bool:
        """Return whether only the turn limit ended an episode of several turns."""
        if self.state.get("stop_condition") != TURN_LIMIT or self.env.max_turns <= 1:
            return False
        others = [c for c in self.env._stop_conditions if c.__name__ != TURN_LIMIT]
        return not any([await condition(self.state) for condition in others])

    async def _finish(self, truncated: bool) -> Step:
        if not self.state["is_completed"]:
            self.state["is_completed"] = True
            await self.env._cleanup(self.state)
        await self.env.render_completion(self.state)
        await self.env.rubric.score_rollout(self.state)
        reward = float(self.state["reward"] or 0.0)
        metrics = {name: float(value) for name, value in (self.state["metrics"] or {}).items()}
        success = reward >= self.success_at
        return Step(reward=reward, done=True, success=success, components=metrics, truncated=truncated)

    def _sorted(self, error: Exception) -> Exception:
        """The library's errors by whose fault they are."""
        errors = self.load("verifiers.errors")
        if isinstance(error, errors.InfraError):
            return InfrastructureError(f"verifiers environment {self.id!r}: {error}")
        if isinstance(error, errors.ToolError):
            return AgentError(f"{type(error).__name__}: {error.__cause__ or error}")
        return error
