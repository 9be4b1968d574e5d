"""What an environment author writes. Messages and rewards go in and out; tokens never do."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from asyncrl.types import MAX_REWARD as MAX_REWARD
from asyncrl.types import Message, Task

MAIN_AGENT = ""
"""Name of the agent that `reset` addresses."""


def agent_of(info: Mapping[str, Any]) -> str:
    """Return the name of the agent whose trajectory has this `info`."""
    return str(info.get("agent_name", info.get("agent", MAIN_AGENT)))


def with_text(message: Message, text: str, between: str) -> Message:
    """Return the message with a text at the end of its content, after `between` where the content is a text."""
    content = message["content"]
    longer = (
        f"{content}{between}{text}"
        if isinstance(content, str)
        else [*content, {"type": "text", "text": text}]
    )
    return {**message, "content": longer}


def tool_call_id(number: int, kind: str = "call") -> str:
    """Return the id of a turn's call: nine alphanumeric characters, the only form that Mistral's templates accept.

    kind: four letters that distinguish ids that are counted separately.
    """
    return f"{kind}{number:05d}"


def least_step_s_of(env: Any) -> float:
    """Return `Env.least_step_s` of an environment; 0.0 for one of another library, which is no `Env`."""
    return float(getattr(env, "least_step_s", lambda: 0.0)())


def secrets_of(env: Any) -> tuple[str, ...]:
    """Return the texts that no observation of an environment may contain before its episode is over, where it names
    some (`secrets()`)."""
    return tuple(getattr(env, "secrets", tuple)())


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model made, parsed from its own format."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """The assistant turn: what the model wrote, and the result of parsing it."""

    content: str
    """Text outside tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    parse_errors: tuple[str, ...] = ()
    """One message per malformed tool call, fit to show the model."""
    reasoning: str = ""
    """What the model thought before it, where `model.reasoning_format` splits it off; environments are not sent it."""

    def call_ids(self) -> list[str]:
        """Return the `tool_call_id`s of the answers to the turn: those of its calls, then of its malformed ones."""
        return [call.id for call in self.tool_calls] + [
            tool_call_id(number, "fail") for number in range(len(self.parse_errors))
        ]

    def error_messages(self) -> list[Message]:
        """Return a tool message for each malformed call that says what is wrong with it."""
        ids = self.call_ids()[len(self.tool_calls) :]
        return [
            {"role": "tool", "tool_call_id": call_id, "content": f"error: {text}"}
            for call_id, text in zip(ids, self.parse_errors, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to one action."""

    messages: list[Message] = field(default_factory=list)
    """New messages only (roles `user` or `tool`), appended to the conversation."""
    reward: float = 0.0
    """Reward of the turn just taken; the trajectory reward is the sum over turns."""
    done: bool = False
    success: bool | None = None
    """Verdict on the episode, given with `done`."""
    components: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward, summed over turns."""
    observation_id: str = ""
    """Equal ids mean the same state within a task; used for step-level credit. Left empty, the messages stand for the
    state: give it where equal texts may follow from different states, or different ones from equal states."""
    matches: bool | None = None
    """Whether the action agreed with an expert's, if the environment knows one; used for step-level credit."""
    truncated: bool = False
    """With `done`: the episode was ended by a limit of the environment, not by an outcome."""
    agent: str | None = None
    """The agent that gets the messages and takes the next turn; None for the agent of the last turn. A new name
    starts a separate conversation, which becomes a separate trajectory; see `envs/team`."""
    tools: list[dict[str, Any]] | None = None
    """Tools of a new conversation."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Rewards of further agents by name, credited to the last turn of each."""
    extracted: str = ""
    """What was taken as the answer, for people to read; "" where nothing is looked for, or found."""
    ahead: dict[str, list[Message]] = field(default_factory=dict)
    """What new agents will be addressed with after this one, by name and in their order, whatever it answers: their
    first turns are sampled at once with its own. Each is then addressed as any other, with the same messages and
    tools."""


class Env:
    """One episode of one task. Single use: create, `reset`, `step`..., `close`.

    `reset` and `step` may be plain or `async` methods. A plain one runs in a thread, so it may block; see `blocking`.
    Do not raise for the agent's mistakes: answer them with a message or a penalty. An exception that escapes is
    recorded as the environment's failure and never becomes a reward.
    """

    tools: ClassVar[list[dict[str, Any]]] = []
    """JSON schemas of the tools offered, in the form chat templates accept."""
    blocking: ClassVar[bool] = True
    """Plain `reset` and `step` run in a thread. Set False if they take microseconds: then they run in place."""
    in_worker: ClassVar[bool] = False
    """Its sessions may run in the rollout worker's own process (`env.services = 0`). Set True only if every method
    takes microseconds or awaits, nothing that a model wrote is executed, and no other process is started. A class says
    it of itself: it is not inherited."""
    provides: ClassVar[frozenset[str]] = frozenset()
    """What its steps give beside messages and rewards: "components" (`Step.components`), "matches" (`Step.matches`).
    An objective that reads these is refused for an environment that does not say that it gives them."""
    max_turns: int = 16
    """Turns after which an episode is truncated, unless the recipe sets a lower limit."""

    def __init__(self, task: Task, **config: Any) -> None:
        self.task = task

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the tasks of a split ("train" or "heldout"), in a fixed order; may be endless.

        The default numbers seeds: even for train, odd for held-out, so the splits are disjoint.
        """
        offset = 1 if split == "heldout" else 0
        seed = offset
        while True:
            yield Task(id=f"{split}-{seed}", env=env, seed=seed, split=split)
            seed += 2

    @classmethod
    def inner_task(cls, task: Task, **config: Any) -> tuple[Task, dict[str, Any]] | None:
        """Return task and settings of the environment that plays `task` inside this one; None without one.

        `env.limits` applies to it, too.
        """
        return None

    def least_step_s(self) -> float:
        """Return the least time of a step with which what the agent starts in it may take as long as the settings
        allow it to (`asyncrl.agent_time.needed_s`); 0.0 where nothing is started. Where `env.step_timeout_s` is "auto",
        steps get as much."""
        return 0.0

    def reset(self) -> list[Message] | Awaitable[list[Message]]:
        """Return the opening messages (system, user)."""
        raise NotImplementedError

    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Advance the episode by one assistant turn."""
        raise NotImplementedError

    def close(self) -> Awaitable[None] | None:
        """Free the episode's resources. Called exactly once."""

    def oracle(self, messages: list[Message]) -> Message:
        """The assistant message of a scripted expert, given the conversation so far (optional).

        Used for supervised warm starts and `asyncrl env check`.
        """
        raise NotImplementedError

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """An assistant message of a random but well-formed policy; `rng` is a `random.Random` (optional)."""
        raise NotImplementedError
