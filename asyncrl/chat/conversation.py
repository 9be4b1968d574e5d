"""The conversations of one episode: one for each agent, each with tokens of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from asyncrl.chat.renderer import ChatRenderer, called_names
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.env.protocol import MAIN_AGENT, Action, Step, tool_call_id
from asyncrl.errors import AgentError, EnvironmentFailure, EpisodeError, InputError
from asyncrl.types import Message, Status, Task, Trajectory


class Conversation:
    """What one agent reads and writes, as messages and as tokens."""

    def __init__(
        self,
        builder: TrajectoryBuilder,
        renderer: ChatRenderer,
        messages: list[Message],
        tools: list[dict[str, Any]],
    ) -> None:
        self.builder = builder
        self.renderer = renderer
        self.tools = tools
        self.num_opening = len(messages)
        self.messages = builder.conversation = list(messages)
        self._expected: list[str] = []
        """Ids of the calls that the last turn made, malformed ones included."""
        self._names: dict[str, str] = {}
        """Names of the functions that it called, by the id of the call."""
        try:
            ids = renderer.opening(messages, tools)
            builder.add_context(ids, state_of(messages), renderer.extras(ids, messages))
        except InputError as error:
            raise _environment(builder, error) from error

    def append_observation(self, messages: list[Message], observation_id: str) -> None:
        """Append the environment's answer to the last turn. Without an `observation_id` its text stands for the state.

        Raises `AgentError` where the chat template refuses it because of the number of calls that the turn made, and
        `EnvironmentFailure` where it refuses it for any other reason.
        """
        messages = _with_ids(messages, self._expected)
        try:
            ids = self.renderer.observation(messages, self.tools, self._names)
            extras = self.renderer.extras(ids, messages)
            self.builder.add_context(ids, observation_id or state_of(messages), extras)
        except InputError as error:
            raise self._failure(messages, error) from error
        self.messages += messages

    def drop_observation(self) -> None:
        """Remove the unread answer to the last turn: with it the trajectory would be too long to train."""
        self.builder.drop_context()
        while len(self.messages) > self.num_opening and self.messages[-1]["role"] != "assistant":
            self.messages.pop()

    def append_action(self, action: Action, text: str = "") -> None:
        """Append the last turn as the message it was parsed into; `text` is the whole turn."""
        # A malformed call is in neither the content nor the calls.
        self.builder.turn_messages.append((len(self.messages), text if action.parse_errors else ""))
        self.messages.append(assistant_message(action))
        self._expected = action.call_ids()
        self._names = called_names(self.messages[-1])

    def _failure(self, messages: list[Message], error: InputError) -> EpisodeError:
        """Return whose failure it is that the template refuses `messages`.

        It is the agent's if its turn made several calls and the template accepts the answer to one of them.
        """
        answers = [m for m in messages if m["role"] == "tool"]
        if 1 < len(answers) <= len(self._expected):
            try:
                one = [m for m in messages if m not in answers[1:]]
                self.renderer.observation(one, self.tools, self._names)
            except InputError:
                return _environment(self.builder, error)
            return AgentError(f"a turn of {len(answers)} calls: {error}")
        return _environment(self.builder, error)

    def history(self) -> dict[str, Any]:
        """Return whether fresh renderings of the messages agree with the tokens, and where they fork."""
        matches, forks = self.renderer.compare_history(
            self.builder.token_ids(),
            self.messages,
            self.num_opening,
            self.builder.sampled_turns(),
            self.tools,
        )
        return {"history_matches": matches, "history_forks": forks}


class Conversations:
    """All conversations of an episode. One is active at a time; the environment's answers say which.

    notes: each returns an agent's trajectory with what it notes on it at the episode's end.
    """

    def __init__(self, main: Conversation, notes: Sequence[Note] = ()) -> None:
        self.current = main
        self.agent = MAIN_AGENT
        """Who takes the next turn."""
        self.by_agent = {MAIN_AGENT: main}
        self.ahead: dict[str, Conversation] = {}
        """Conversations that `Step.ahead` has opened, by who is to be addressed in each."""
        self._called: dict[str, tuple[str, int]] = {}
        """Who called each further agent, and in which of its turns, counted from 0."""
        self.notes = notes
        self.next: dict[tuple[str, int], tuple[str, int]] = {}
        """By agent and turn, counted from 0: who moves next, and how many tokens it has read then."""

    def switch_agent(self, step: Step, task: Task, episode_index: int) -> None:
        """Append a step's messages to the conversation of the agent they are for; it takes the next turn.

        A new agent starts a conversation with them and with the step's tools.
        """
        moved = self.agent, self.current.builder.num_turns - 1
        if step.agent is None or step.agent in self.by_agent:
            if step.agent is not None:
                self.agent, self.current = step.agent, self.by_agent[step.agent]
            self.current.append_observation(step.messages, step.observation_id)
        else:
            self._called[step.agent] = self._caller()
            opened = self.ahead.pop(step.agent, None)
            if opened is None:
                opened = self._open(step.messages, step.tools, task, episode_index)
            elif (opened.messages, opened.tools) != (step.messages, step.tools or []):
                raise EnvironmentFailure(
                    f"environment {task.env!r}: agent {step.agent!r} is addressed with other messages or tools than "
                    "were said ahead"
                )
            self.current = self.by_agent[step.agent] = opened
            self.agent = step.agent
        for agent, messages in step.ahead.items():
            if agent in self.by_agent or agent in self.ahead:
                raise EnvironmentFailure(f"environment {task.env!r}: ahead: agent {agent!r} is no new one")
            self.ahead[agent] = self._open(messages, step.tools, task, episode_index)
        self.next[moved] = self.agent, self.current.builder.num_tokens

    def _open(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, task: Task, episode_index: int
    ) -> Conversation:
        builder = TrajectoryBuilder(task, episode_index)
        return Conversation(builder, self.current.renderer, messages, tools or [])

    def _caller(self) -> tuple[str, int]:
        """Return whose turn the next new agent answers: the last one, unless it was an answer itself, without calls."""
        agent = self.agent
        while agent in self._called and not self.by_agent[agent].messages[-1].get("tool_calls"):
            agent = self._called[agent][0]
        return agent, len(self.by_agent[agent].builder.sampled_turns()) - 1

    def credit(self, step: Step) -> None:
        """Credit the turn just taken, and the last turn of each other agent that the step names.

        A verdict is the episode's, whoever took its last turn. Raises `EnvironmentFailure` when the step names an agent
        that has taken no turn.
        """
        self.current.builder.add_step(step)
        if step.success is not None:
            self.by_agent[MAIN_AGENT].builder.success = step.success
        for agent, reward in step.rewards.items():
            found = self.by_agent.get(agent)
            if found is None or not found.builder.sampled_turns():
                raise EnvironmentFailure(
                    f"environment {self.current.builder.task.env!r}: a reward for agent {agent!r}, which has not spoken"
                )
            found.builder.add_reward(reward)

    def fail_turn(self) -> None:
        """Record, as environments do, that the agent ended the episode with a turn that cannot be answered."""
        main = self.by_agent[MAIN_AGENT].builder
        self.current.builder.components["agent_error"] = 1.0
        main.success = False

    def finish(self, status: Status, error: str, check_history: bool) -> tuple[Trajectory, ...]:
        """Return a trajectory for every agent that has taken a turn, the main agent's first.

        `info["agent"]` of the others is the part of their name before "/", so that "helper/1" and "helper/2" are two
        invocations of one agent; `info["agent_name"]` is the whole name, and `info["called_by"]` and
        `info["call_turn"]` say whose turn called it. They share the main agent's success.
        """
        found = []
        for agent, conversation in self.by_agent.items():
            builder = conversation.builder
            if agent != MAIN_AGENT and not builder.sampled_turns():
                continue
            builder.success = self.by_agent[MAIN_AGENT].builder.success
            info = conversation.history() if check_history else {}
            if agent != MAIN_AGENT:
                caller, turn = self._called[agent]
                info |= {
                    "agent": agent_of(agent),
                    "agent_name": agent,
                    "called_by": caller,
                    "call_turn": turn,
                }
            trajectory = builder.finish(status, error=error, info=info)
            for note in self.notes:
                trajectory = note(self, agent, trajectory)
            found.append(trajectory)
        return tuple(found)


Note = Callable[[Conversations, str, Trajectory], Trajectory]
"""Returns the trajectory of an agent with something noted on it, from all conversations of its episode."""


def state_of(messages: list[Message]) -> str:
    """Return what is equal for equal texts: what GiGPO (arXiv 2505.10978) compares states by."""
    shown = [[m["role"], m.get("name", ""), m.get("content", "")] for m in messages]
    return hashlib.blake2b(json.dumps(shown).encode(), digest_size=8).hexdigest()


def agent_of(name: str) -> str:
    """Return whose invocation it is: the part of the name before "/"."""
    return name.partition("/")[0]


def _environment(builder: TrajectoryBuilder, error: InputError) -> EnvironmentFailure:
    return EnvironmentFailure(f"environment {builder.task.env!r}: {error}")


def _with_ids(messages: list[Message], expected: list[str]) -> list[Message]:
    """Return the messages with the id of the call it answers on each tool message without one, in their order."""
    found, place = [], 0
    for message in messages:
        if message["role"] == "tool":
            if not message.get("tool_call_id"):
                known = place < len(expected)
                call_id = expected[place] if known else tool_call_id(place, "more")
                message = {**message, "tool_call_id": call_id}
            place += 1
        found.append(message)
    return found


def assistant_message(action: Action) -> Message:
    """Return a turn as a message of its conversation; malformed calls have none."""
    message: Message = {"role": "assistant", "content": action.content}
    if action.reasoning:
        message["reasoning_content"] = action.reasoning
    if action.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in action.tool_calls
        ]
    return message
