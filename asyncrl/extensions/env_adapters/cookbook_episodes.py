"""Plays episodes of tinker-cookbook's environments in a Python that has it: the player of `cookbook.py`; see
`episode_service.py`. This file imports nothing of asyncrl.

Such an environment takes tokens and gives tokens, by a renderer that it is given. Ours keeps messages as they are: a
prompt is the messages themselves, and a turn's "tokens" are the bytes of its text. So the policy's tokens are sampled
and kept elsewhere, by the model's own template, and nothing is tokenized here.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import register_renderer
from tinker_cookbook.renderers.base import Message, ParseTermination, Renderer, ToolCall, UnparsedToolCall
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    STOP_METRIC_PREFIX,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    RLDataset,
    RLDatasetBuilder,
    StopReason,
    Trajectory,
    Transition,
)
from tinker_cookbook.tokenizer_utils import register_tokenizer

NAME = "asyncrl"
"""Of our renderer and its tokenizer, in the cookbook's registries."""
NAMED = ("renderer_name", "model_name_for_tokenizer", "model_name")
"""Settings of the cookbook's builders that name renderer and tokenizer."""
END, CALLS = 256, 257
"""After a turn, and before its calls as JSON."""
LIMITS = {
    f"{STOP_METRIC_PREFIX}{one}"
    for one in StopReason
    if one not in (StopReason.COMPLETED, StopReason.TOOL_STOPPED, StopReason.PARSE_ERROR)
}
"""Metrics that say that a limit ended the episode."""

__all__ = ["Player"]


class Shown(tinker.ModelInput):
    """A prompt of messages. It has no tokens, so limits that count them never apply."""

    messages: list[Any]


class Bytes:
    """A tokenizer whose tokens are the bytes of a text."""

    name_or_path = NAME
    eos_token_id = END
    eos_token = bos_token = ""
    bos_token_id = pad_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False, **options: Any) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: int | Iterable[int], **options: Any) -> str:
        """Return the text, without what is no text."""
        found = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        ends = [place for place, token in enumerate(found) if token >= END]
        return bytes(found[: ends[0] if ends else None]).decode(errors="replace")


class Messages(Renderer):
    """Renders messages as themselves, and reads a turn that `turn_tokens` made."""

    has_extension_property = True

    def get_stop_sequences(self) -> list[int]:
        return [END]

    def render_message(self, message: Any, ctx: Any) -> Any:
        raise NotImplementedError("no tokens of messages are known here")

    def build_generation_prompt(
        self, messages: list[Any], role: str = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        if prefill or role != "assistant":
            raise NotImplementedError(
                "a turn begins as the model's template has it: prefill and role are not supported"
            )
        return Shown(chunks=[], messages=list(messages))

    def parse_response(self, response: list[int]) -> tuple[Any, ParseTermination]:
        message = Message(role="assistant", content=self.tokenizer.decode(response))
        if CALLS in response:
            made = json.loads(bytes(response[response.index(CALLS) + 1 : -1]))
            message["tool_calls"] = [ToolCall.model_validate(call) for call in made["calls"]]
            message["unparsed_tool_calls"] = [
                UnparsedToolCall(raw_text="", error=text) for text in made["errors"]
            ]
        return message, ParseTermination.STOP_SEQUENCE

    def create_conversation_prefix_with_tools(self, tools: list[Any], system_prompt: str = "") -> list[Any]:
        """Return the system prompt, which carries the tools to where the model's template writes them."""
        return [{"role": "system", "content": system_prompt, "tools": list(tools)}]


register_tokenizer(NAME, Bytes)
register_renderer(NAME, lambda tokenizer, image_processor=None: Messages(Bytes()))


def turn_tokens(turn: dict[str, Any]) -> list[int]:
    """Return a turn, `content`, `calls` and `errors`, as our renderer reads it."""
    calls = []
    if turn["calls"] or turn["errors"]:
        calls = [CALLS, *json.dumps({"calls": turn["calls"], "errors": turn["errors"]}).encode()]
    return [*turn["content"].encode(errors="replace"), *calls, END]


def as_json(message: Any) -> dict[str, Any]:
    """Return a message of the cookbook's in the form that chat templates take."""
    content = message["content"]
    if not isinstance(content, str):
        if odd := {part["type"] for part in content} - {"text", "thinking"}:
            raise ValueError(f"messages with {', '.join(sorted(odd))} are not supported")
        content = "".join(part["text"] for part in content if part["type"] == "text")
    found = {"role": message["role"], "content": content}
    found |= {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}
    if message.get("tool_calls"):
        found["tool_calls"] = [call.model_dump() for call in message["tool_calls"]]
    return found


def asked(observation: Any, stop: Any) -> dict[str, Any]:
    """Return what an observation asks the policy: `messages` and `tools`."""
    if not isinstance(observation, Shown):
        raise ValueError(
            "it writes its prompt in tokens of its own, or by another renderer: take the renderer by the names "
            f'that it is given (renderer_name = "{NAME}", model_name_for_tokenizer = "{NAME}")'
        )
    if stop not in ([], [END], None):
        raise ValueError(f"it ends turns at {stop!r}, but a turn ends where the model's template ends it")
    tools = [tool for message in observation.messages for tool in message.get("tools") or ()]
    messages = [
        as_json(message) for message in observation.messages if message["content"] or "tools" not in message
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": tool} for tool in tools]}


def load(path: str) -> Callable[..., Any]:
    """Return what an import path names: `module:name`, or `file.py:name`."""
    module, _, name = path.rpartition(":")
    if not module.endswith(".py"):
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found
    file = Path(module).resolve()
    if file.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[file.stem])
    made: Callable[..., Any] = getattr(sys.modules[file.stem], name)
    return made


@dataclass
class Source:
    """The groups of a data set, or the episodes of what makes one from a `seed`, as `dataset` and `args` say."""

    description: dict[str, Any]
    dataset: RLDataset | None = None
    divided: bool = True
    """The held-out split has no data set of its own."""
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    rows: list[EnvGroupBuilder] = field(default_factory=list)
    _all: Iterator[EnvGroupBuilder] | None = None

    def open(self) -> None:
        """Make the data set. Called in a thread: it may take long."""
        if self._all is not None:
            return
        if self._takes("seed"):
            self._all = iter(())
            return
        made = self._make()
        if isinstance(made, RLDatasetBuilder):
            made = asyncio.run(made())
        train, test = made if isinstance(made, tuple) else (made, None)
        self.divided = test is None
        chosen = test if test is not None and self.description["split"] == "heldout" else train
        if not isinstance(chosen, RLDataset):
            raise TypeError(
                f"{self.description['dataset']} makes a {type(chosen).__name__}; an RLDatasetBuilder or an RLDataset "
                "is needed, or a function of a `seed` that returns an EnvGroupBuilder or an Env"
            )
        self.dataset = chosen
        self._all = (one for batch in range(len(chosen)) for one in chosen.get_batch(batch))

    def task(self, row: int) -> EnvGroupBuilder | Env | None:
        """Return the group, or the environment, of a row; None after the last one."""
        if self.dataset is None:
            return self._make(seed=row)
        assert self._all is not None
        while len(self.rows) <= row:
            found = next(self._all, None)
            if found is None:
                return None
            self.rows.append(found)
        return self.rows[row]

    def count(self, first: int, count: int) -> int:
        """Return how many of `count` rows from `first` on there are; of seeds all."""
        if self.dataset is None:
            return count
        self.task(first + count - 1)
        return max(0, min(count, len(self.rows) - first))

    def _takes(self, name: str) -> bool:
        return name in inspect.signature(load(self.description["dataset"])).parameters

    def _make(self, **more: Any) -> Any:
        named = {name: NAME for name in NAMED if self._takes(name)}
        if self._takes("renderer"):
            more["renderer"] = Messages(Bytes())
        return load(self.description["dataset"])(**{**named, **self.description["args"], **more})


@dataclass
class Playing:
    """An episode that is being played."""

    env: Env
    builder: EnvGroupBuilder | None
    observation: Any
    transitions: list[Transition] = field(default_factory=list)

    async def finish(self) -> tuple[float, dict[str, Any]]:
        """Return what the group adds for this episode, its only one: reward and metrics."""
        if self.builder is None:
            return 0.0, {}
        played = Trajectory(self.transitions, self.observation)
        ((reward, metrics),) = await self.builder.compute_group_rewards([played], [self.env])
        return reward, metrics


class Player:
    """Plays episodes of several sources at the same time."""

    def __init__(self) -> None:
        self.port = 0
        self.sources: dict[str, Source] = {}
        self.listed: dict[str, Source] = {}
        """Of their own: rows are made where nothing else makes them."""
        self.playing: dict[str, Playing] = {}

    def routes(self) -> list[Any]:
        return []

    def tasks(self, description: dict[str, Any], first: int, count: int) -> dict[str, Any]:
        source = self.listed.setdefault(json.dumps(description, sort_keys=True), Source(description))
        source.open()
        return {"rows": [""] * source.count(first, count), "divided": source.divided}

    async def open(self, id: str, body: dict[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        description = body["source"]
        source = self.sources.setdefault(json.dumps(description, sort_keys=True), Source(description))
        async with source.opening:
            await asyncio.to_thread(source.open)
            task = await asyncio.to_thread(source.task, body["row"])
        if task is None:
            raise IndexError(f"the data set has no row {body['row']}, only {len(source.rows)}")
        builder = None if isinstance(task, Env) else task
        envs = [task] if isinstance(task, Env) else await task.make_envs()
        try:
            if len(envs) != 1:
                raise ValueError(
                    f"its group makes {len(envs)} environments, and every episode has one of its own here: set its "
                    "group size to 1 in env.config.args; groups that play each other are not supported"
                )
            first = await envs[0].initial_observation()
            if isinstance(first, InitialObservationOverflow):
                raise ValueError("its first prompt is over a limit of its own")
            question = asked(*first)
            if gone():
                # Nobody would end the episode.
                raise ConnectionError("whoever asked is gone")
        except BaseException:
            await clean(builder)
            raise
        self.playing[id] = Playing(envs[0], builder, first[0])
        return {"asked": question}

    async def step(self, id: str, message: dict[str, Any]) -> dict[str, Any]:
        episode = self.playing[id]
        tokens = turn_tokens(message)
        try:
            result = await episode.env.step(tokens, extra={"stop_reason": "stop"})
            if PARSE_ERROR_MASKED_METRIC_KEY in result.metrics:
                raise ValueError("it leaves turns out of training (mask_error_turns), which is not supported")
            turn = TokensWithLogprobs(tokens=tokens, maybe_logprobs=None)
            episode.transitions.append(
                Transition(
                    episode.observation, turn, result.reward, result.episode_done, result.metrics, result.logs
                )
            )
            episode.observation = result.next_observation
            answer: dict[str, Any] = {"reward": result.reward, "metrics": dict(result.metrics)}
            if not result.episode_done:
                return {**answer, "asked": asked(result.next_observation, result.next_stop_condition)}
            more, metrics = await episode.finish()
        except Exception as error:
            return {"refused": f"{type(error).__name__}: {error}"}
        return {
            "reward": result.reward + more,
            "metrics": {**answer["metrics"], **metrics},
            "truncated": not LIMITS.isdisjoint(result.metrics),
        }

    async def close(self, id: str) -> None:
        episode = self.playing.pop(id, None)
        if episode is not None:
            await clean(episode.builder)


async def clean(builder: EnvGroupBuilder | None) -> None:
    """Free what a group's environments hold."""
    if builder is not None:
        await builder.cleanup()
