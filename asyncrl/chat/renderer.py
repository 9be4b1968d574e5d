"""Messages to tokens, append-only: sampled turns keep the ids the engine sampled, forever.

The opening messages are rendered once through the chat template. After that each new observation is
rendered as what the template adds *after* an assistant turn, and only those ids are appended.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from asyncrl.chat.load_tokenizer import generation_stops, load_tokenizer, read_template
from asyncrl.chat.template_traits import (
    PROBE_TOOL,
    call_message,
    probe_forms,
    probe_shown,
)
from asyncrl.env.protocol import tool_call_id
from asyncrl.errors import ConfigError, InputError
from asyncrl.images import without_images
from asyncrl.model_kinds import ImageProcessor, kind_of
from asyncrl.types import IMAGES, Message, PlacedImage

T = TypeVar("T")
_USER = {"role": "user", "content": "?"}
_MARK = "asyncrlmark"
"""Content of a stand-in assistant turn, found again in the rendered text; lengthened where messages hold it."""
_THINK, _END_THINK = "<think>", "</think>"
MOST_PROMPTS = 32
"""Turns of an episode whose prompts are rendered afresh to count forks."""
_WRITTEN_IN_HISTORY = {"<|return|>": "<|end|>"}
"""What a template writes for a stop token once more follows the turn: gpt-oss's."""
CACHE_BYTES = 64 * 2**20
"""Size of a renderer's cache, keys included."""
REPEATED_TOKENS = 512
"""Texts and conversations up to this length are remembered with what they decode to, and how they compare with a fresh
rendering: short ones come again, and a tokenizer and a template take longer than a look-up."""
REMEMBERED = 2**13
"""Most entries of each kind."""
_ENTRY_BYTES = 256
"""What a cache entry takes besides its ids: the digest, two objects, the slots in the mapping."""


class TemplateRefused(InputError):
    """The chat template refuses these messages; `reason` is its error."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat template refuses the messages: {reason}")
        self.reason = reason


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used."""

    eos_token_id: Any
    eos_token: Any

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any: ...
    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, token_ids: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one episode, in turns and tokens."""

    max_turns: int
    max_tokens_per_turn: int
    max_tokens: int


class _Remembered(Generic[T]):
    """What was made of short texts, the latest of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, T] = OrderedDict()

    def get(self, key: bytes, num_tokens: int, make: Callable[[], T]) -> T:
        """Return what `make` returned for this key, or does now."""
        if num_tokens > REPEATED_TOKENS:
            return make()
        if (known := self._known.get(key)) is None:
            known = self._known[key] = make()
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known


class ChatRenderer:
    """Renders one model family's chat template. Share one per process: it caches observations.

    image_processor: that of a vision model; without one messages that hold images are refused. options: variables of
    the chat template, such as `enable_thinking`, that hold for everything rendered here.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        more_stop_ids: Sequence[int] = (),
        image_processor: ImageProcessor | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.options = dict(options or {})
        self._stops = {tokenizer.eos_token_id: tokenizer.eos_token}
        for token_id in more_stop_ids:
            if token_id not in self._stops and (text := self._token(token_id)):
                self._stops[token_id] = text
        self._ends = {text: token_id for token_id, text in self._stops.items()}
        """Texts that end a turn in a rendering, with the token that a policy samples there."""
        for token_id, text in self._stops.items():
            if text in _WRITTEN_IN_HISTORY:
                self._ends[_WRITTEN_IN_HISTORY[text]] = token_id
        self.traits = probe_forms(self._apply)
        """How the template wants messages written, and what it does not show."""
        self._calls_alone = False
        """Whether the template writes the results of calls before the content of the turn that made them."""
        self._cache: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._cached_bytes = 0
        end = self._end_of_turn()
        self._find_results()
        self.traits = probe_shown(self.traits, self._render, self._probe_observation)
        self.stop_token_ids = (end, *(token_id for token_id in self._stops if token_id != end))
        """Tokens that end a sampled turn; the first is the one that the template writes after a turn."""
        self._compared = _Remembered[tuple[bool, int]]()
        """Results of `compare_history`."""
        self._decoded = _Remembered[str]()
        self._turns = _Remembered[str]()
        """Messages of the assistant as the template writes them."""

    def opening(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids of the opening messages up to where the assistant starts. [L] int32.

        Raises `TemplateRefused`, and `InputError` for images that the model cannot read.
        """
        messages, files = without_images(messages)
        key = _digest("opening", messages, tools)
        if (cached := self._recall(key)) is None:
            self._refuse_dropped(messages, tools, opening=True)
            text = self._render(messages, tools, generate=True)
            _refuse_unseen(messages, text, tools or ())
            cached = self._tokens(text, files)
            self._remember(key, cached)
        return cached

    def observation(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> np.ndarray:
        """Return the ids that follow a sampled turn when `messages` answer it. [L] int32.

        names: of the functions that the turn called, by the id of the call; some templates (gpt-oss's) write them
        before the answers. The ids start after the stop token, so what the template writes between it and the next
        message (often a newline) is included. Raises `TemplateRefused`, and `InputError` for images that the model
        cannot read.
        """
        messages, files = without_images(messages)
        key = _digest("observation", [*messages, dict(names or {})], tools)
        if (cached := self._recall(key)) is None:
            self._refuse_dropped(messages, tools, opening=False)
            text = self._after_assistant(messages, tools, names or {})
            _refuse_unseen(messages, text)
            cached = self._tokens(text, files)
            self._remember(key, cached)
        return cached

    def images(self, token_ids: np.ndarray, messages: list[Message]) -> tuple[PlacedImage, ...]:
        """Return where the images of `messages` stand in their tokens, as `opening` or `observation` returned them.

        Raises `InputError`.
        """
        _, files = without_images(messages)
        if not files or self.image_processor is None:
            return ()
        return self.image_processor.find(token_ids, files)

    def extras(self, token_ids: np.ndarray, messages: list[Message]) -> dict[str, Any]:
        """Return what some of the tokens of `messages` stand for, by the kind of extra. Raises `InputError`."""
        images = self.images(token_ids, messages)
        return {IMAGES: images} if images else {}

    def assistant(self, message: Message, tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids a policy would sample to write `message`, stop token included. [L] int32.

        Under a template that opens the reasoning itself they begin inside it and end it. Raises `TemplateRefused`,
        and `ConfigError` where the template writes a turn in another way than it asks for one.
        """
        return self._encode(self._assistant_text(message, tools))

    def begin_turn(self, text: str) -> np.ndarray:
        """Return the ids of the beginning of a turn that is given, to stand behind the generation prompt. [L] int32.

        Under a template that opens the reasoning itself they end it first.
        """
        if self.opens_reasoning():
            text = _end_reasoning(text, {"role": "assistant", "content": text})
        return self._encode(text)

    def opens_reasoning(self) -> bool:
        """Return whether the generation prompt opens `<think>`, so that a turn starts inside its reasoning."""
        _, opened, behind = self._render([_USER], None, generate=True).rpartition(_THINK)
        return bool(opened) and _END_THINK not in behind

    def reasoning_marks(self) -> tuple[str, str] | None:
        """Return what the template writes around the reasoning of a turn, the text behind the last line break before it
        and that up to the first after it; None where it shows no reasoning."""
        thought = f"{_MARK}thought"
        turn: Message = {"role": "assistant", "content": _MARK, "reasoning_content": thought}
        full = self._try_render([_USER, turn], None, generate=False) or ""
        before, found, behind = full.rpartition(thought)
        if not found:
            return None
        return before.rstrip("\n").rpartition("\n")[2], behind.lstrip("\n").partition("\n")[0]

    def with_options(self, options: Mapping[str, Any]) -> ChatRenderer:
        """Return a renderer like this one with further variables of the template; itself where nothing changes."""
        merged = {**self.options, **options}
        if merged == self.options:
            return self
        stops = [token_id for token_id in self.stop_token_ids if token_id != self.tokenizer.eos_token_id]
        return ChatRenderer(self.tokenizer, stops, self.image_processor, merged)

    def text(self, token_ids: np.ndarray) -> str:
        """Decode a sampled turn, without its stop token."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] in self.stop_token_ids else token_ids
        return self._text(ids)

    def compare_history(
        self,
        token_ids: np.ndarray,
        messages: list[Message],
        num_opening: int,
        turns: list[np.ndarray],
        tools: list[dict[str, Any]] | None = None,
    ) -> tuple[bool, int]:
        """Compare an episode's tokens with fresh renderings of its messages: do they agree, and how often they fork.

        token_ids: the whole episode, [L]. messages: the conversation, of which `num_opening` opened it. turns: the
        ids of each sampled turn. Training uses `token_ids` either way. A disagreement means that the template
        rewrites history (drops earlier reasoning, say) or that the model wrote what the template would not. A fork
        is a turn whose freshly rendered prompt does not extend the prompt and answer of the turn before: a client
        that renders every request afresh, as chat servers do, starts another prefix there.
        """
        shape = {"opening": num_opening, "turns": [len(turn) for turn in turns]}
        key = _digest("history", [*without_images(messages)[0], shape], tools) + _bytes(token_ids, *turns)
        return self._compared.get(
            key, len(token_ids), lambda: self._compare(token_ids, messages, num_opening, turns, tools)
        )

    def _compare(
        self,
        token_ids: np.ndarray,
        messages: list[Message],
        num_opening: int,
        turns: list[np.ndarray],
        tools: list[dict[str, Any]] | None,
    ) -> tuple[bool, int]:
        # After an observation come the generation prompt and perhaps a turn that was cut.
        waiting = messages[-1]["role"] != "assistant"
        fresh, kept = self._try_render(messages, tools, generate=waiting), self._text(token_ids)
        if fresh is not None and (kept.startswith(fresh) if waiting else self._same_end(kept, fresh)):
            return True, 0
        sampled = [self._text(turn) for turn in turns]
        forks = self._forks_in_pieces(fresh or "", messages, num_opening, sampled, tools)
        if forks is None:
            forks = self._forks_in_prompts(messages, num_opening, sampled, tools)
        return False, forks

    def _same_end(self, kept: str, fresh: str) -> bool:
        """Whether two conversations that end with a turn agree. Some templates (GLM's) write the token that ends a turn
        as the beginning of the next message, so that it is missing from a rendering that ends there."""
        kept, fresh = kept.rstrip("\n"), fresh.rstrip("\n")
        return kept == fresh or (kept.startswith(fresh) and kept[len(fresh) :].strip() in self._ends)

    def _forks_in_pieces(
        self,
        fresh: str,
        messages: list[Message],
        num_opening: int,
        sampled: list[str],
        tools: list[dict[str, Any]] | None,
    ) -> int | None:
        """Count the forks of a template that only appends, rendering each message once; None for any other.

        If the concatenated renderings of the single messages are a prefix of the rendering `fresh` of all, every prompt
        is a prefix of it, too, and a prompt forks exactly where the rendering of a turn does not start with its tokens.
        """
        whole, answered = self._text(self.opening(messages[:num_opening], tools)), num_opening
        differs: list[bool] = []
        for i in range(num_opening, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            if i > answered:
                names = called_names(messages[answered - 1])
                whole += self._text(self.observation(messages[answered:i], tools, names))
            try:
                turn = self._turns.get(
                    _digest("assistant", [messages[i]], tools),
                    len(sampled[len(differs)]),
                    partial(self._assistant_text, messages[i], tools),
                )
            except (ConfigError, TemplateRefused):
                return None
            differs.append(not turn.startswith(sampled[len(differs)]))
            whole, answered = whole + turn, i + 1
            if not fresh.startswith(whole):
                return None
        return sum(differs[:-1])

    def _forks_in_prompts(
        self,
        messages: list[Message],
        num_opening: int,
        sampled: list[str],
        tools: list[dict[str, Any]] | None,
    ) -> int:
        """Count the forks of any template by rendering the prompts of `MOST_PROMPTS` turns and of those before them.

        Longer episodes are taken to fork elsewhere as often as at these turns, which are spread over all of them:
        rendering every prompt would take time by the square of their number.
        """
        places = [i for i in range(num_opening, len(messages)) if messages[i]["role"] == "assistant"]

        @functools.lru_cache(maxsize=2)
        def prompt(turn: int) -> str | None:
            return self._try_render(messages[: places[turn]], tools, generate=True)

        def forks(turn: int) -> bool:
            expected = (prompt(turn - 1) or "") + sampled[turn - 1] if turn else ""
            return (found := prompt(turn)) is None or not found.startswith(expected)

        looked_at = min(len(places), MOST_PROMPTS)
        found = sum(forks(k * len(places) // looked_at) for k in range(looked_at))
        return round(found * len(places) / looked_at) if looked_at else 0

    def _recall(self, key: bytes) -> np.ndarray | None:
        if (cached := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
        return cached

    def _remember(self, key: bytes, ids: np.ndarray) -> None:
        ids.flags.writeable = False
        self._cache[key] = ids
        self._cached_bytes += ids.nbytes + _ENTRY_BYTES
        while self._cached_bytes > CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.nbytes + _ENTRY_BYTES

    def _refuse_dropped(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, opening: bool
    ) -> None:
        """Raise `TemplateRefused` for what the template would leave out without a word."""
        if dropped := self.traits.dropped_of(messages, tools, opening):
            raise TemplateRefused(dropped)

    def _apply(self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool) -> str:
        """Return the template's own rendering, whatever it makes of the messages."""
        fixed = {"tools": tools or None, "add_generation_prompt": generate, "tokenize": False}
        return self.tokenizer.apply_chat_template(messages, **self.options, **fixed)

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool) -> str:
        messages = self.traits.write(_with_arguments(_with_texts(messages), _read))
        try:
            return self._apply(messages, tools, generate)
        except Exception as error:
            # Templates raise on purpose, and like any program where a field is missing or of another type.
            reason = error
        if (written := _with_arguments(messages, _written)) != messages:
            # DeepSeek's templates take the arguments of calls as JSON text, all others as an object.
            with contextlib.suppress(Exception):
                return self._apply(written, tools, generate)
        raise TemplateRefused(str(reason) or type(reason).__name__) from reason

    def _assistant_text(self, message: Message, tools: list[dict[str, Any]] | None) -> str:
        before = self._render([_USER], tools, generate=True)
        full = self._render([_USER, message], tools, generate=False)
        bare, opened, behind = before.rpartition(_THINK)
        if full.startswith(before):
            return self._up_to_end(full, len(before), message, tools)
        if opened and _END_THINK not in behind and full.startswith(bare):
            return _end_reasoning(self._up_to_end(full, len(bare), message, tools), message)
        raise ConfigError("the chat template writes more before an assistant turn than the generation prompt")

    def _up_to_end(self, full: str, start: int, message: Message, tools: list[dict[str, Any]] | None) -> str:
        """Return the turn that begins at `start` of a rendering `full` that it ends, with its stop token.

        Some templates write the beginning of the next message there; then one is rendered after it.
        """
        end = max(full.rfind(stop) + len(stop) if stop in full else 0 for stop in self._ends)
        if end > start:
            return full[start:end]
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": call.get("id") or tool_call_id(number), "content": "?"}
            for number, call in enumerate(message.get("tool_calls") or ())
        ]
        longer, mark = self._answered(answers or [_USER], tools, called_names(message))
        found = self._first_stop(longer, longer.rfind(mark))
        if mark not in longer or found is None:
            raise ConfigError("the chat template ends no assistant turn with a stop token")
        return full[start:] + self._stops[found[0]]

    def _try_render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool
    ) -> str | None:
        """As `_render`, or None where the template refuses the messages."""
        try:
            return self._render(messages, tools, generate)
        except TemplateRefused:
            return None

    def _text(self, token_ids: np.ndarray) -> str:
        return self._decoded.get(
            _bytes(token_ids),
            len(token_ids),
            lambda: self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False),
        )

    def _tokens(self, text: str, files: list[bytes]) -> np.ndarray:
        """Return the ids of a rendering, with as many for each image as the model reads. Raises `InputError`."""
        ids = self._encode(text)
        if self.image_processor is not None:
            return self.image_processor.expand(ids, files)
        if files:
            raise InputError(
                "the messages hold an image, and the model reads text alone: give a vision model"
            )
        return ids

    def _encode(self, text: str) -> np.ndarray:
        try:
            text.encode()
        except UnicodeEncodeError:
            message = "the text holds half a surrogate pair, which no tokenizer takes; send whole characters"
            raise InputError(message) from None
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _after_assistant(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, names: Mapping[str, str]
    ) -> str:
        """Return the text after the stop token of a stand-in turn. It is searched in the whole rendering, because a
        template may write that turn differently when messages follow (Qwen3 drops its reasoning then)."""
        full, mark = self._answered(messages, tools, names)
        found = self._first_stop(full, full.rfind(mark))
        if mark not in full or found is None:
            raise TemplateRefused("it does not end a turn that these messages answer with a stop token")
        return full[found[1] :]

    def _answered(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, names: Mapping[str, str]
    ) -> tuple[str, str]:
        """Return a rendering in which `messages` answer a stand-in turn, and a text that this turn ends with."""
        mark, given = _MARK, json.dumps([messages, tools], default=repr)
        while mark in given:
            mark += "x"
        stand_in = _stand_in(messages, mark, names, self._calls_alone)
        return self._render([_USER, stand_in, *messages], tools, generate=True), mark

    def _probe_observation(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        return self._after_assistant(messages, tools, {})

    def _find_results(self) -> None:
        """Find where the template writes the results of calls: behind the end of the turn, or, as Gemma 4's, inside it.

        There its own opening token ends what the policy samples, as much as the end of a turn does; where the model's
        settings do not name it among the stop tokens, it is added to them.
        """
        result: Message = {
            "role": "tool",
            "tool_call_id": tool_call_id(0),
            "name": "f",
            "content": _MARK + "result",
        }

        def follows() -> bool:
            with contextlib.suppress(TemplateRefused):
                return result["content"] in self._after_assistant([result], [PROBE_TOOL], {})
            return False

        if follows():
            return
        self._calls_alone = True
        if follows():
            return
        if (added := self._token_before_result(result)) is not None:
            self._stops[added] = self._ends_with(added)
            if follows():
                return
            del self._ends[self._stops.pop(added)]
        self._calls_alone = False

    def _ends_with(self, token_id: int) -> str:
        text = self._token(token_id)
        self._ends[text] = token_id
        return text

    def _token_before_result(self, result: Message) -> int | None:
        """Return the special token that the template writes between a call and its result; None where there is none.

        What closes a call is what follows the arguments of the first of two calls as much as those of the last.
        """
        marks = [f"{_MARK}{n}end" for n in "ab"]
        answers = [{**result, "tool_call_id": tool_call_id(n)} for n in range(2)]
        turn = call_message("", *({"x": mark} for mark in marks))
        try:
            full = self._render([_USER, turn, *answers], [PROBE_TOOL], generate=True)
        except TemplateRefused:
            return None
        if not all(mark in full for mark in marks):
            return None
        behind = [self._encode(full[full.rfind(mark) + len(mark) :]).tolist() for mark in marks]
        for closing, other in zip(*behind[::-1], strict=False):
            if closing != other:
                text = self._token(closing)
                special = len(text) > 1 and self._encode(text).tolist() == [closing]
                return closing if special and text in full else None
        return None

    def _first_stop(self, text: str, start: int) -> tuple[int, int] | None:
        """Return which stop token comes first in `text` from `start`, and where it ends; None when none does."""
        places = [(text.find(stop, start), stop) for stop in self._ends]
        place, first = min(((place, stop) for place, stop in places if place >= 0), default=(-1, ""))
        return (self._ends[first], place + len(first)) if place >= 0 else None

    def _end_of_turn(self) -> int:
        """Return the stop token that the template writes after a turn. Raises `ConfigError` when it writes none."""
        try:
            full = self._render([_USER, {"role": "assistant", "content": _MARK}, _USER], None, generate=True)
        except TemplateRefused as error:
            raise ConfigError(f"a conversation of three turns: {error}") from error
        found = self._first_stop(full, full.rfind(_MARK)) if _MARK in full else None
        if found is None:
            raise ConfigError(
                "the chat template must end assistant turns with the tokenizer's eos_token or another of the "
                f"model's stop tokens: {', '.join(map(repr, self._stops.values()))}"
            )
        return found[0]

    def _token(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id], skip_special_tokens=False)


def called_names(message: Message) -> dict[str, str]:
    """Return the names of the functions that a message calls, by the id of the call."""
    return {
        str(call.get("id", "")): str(call["function"]["name"]) for call in message.get("tool_calls") or ()
    }


_SHOWN_WORD = re.compile(r"[A-Za-z0-9]{3,60}")


def _refuse_unseen(messages: Sequence[Message], text: str, tools: Sequence[Mapping[str, Any]] = ()) -> None:
    """Raise `TemplateRefused` for what a rendering has not though no probe showed it, such as a system message between
    two of the user, tools where a system message comes first, or the end of a long result.

    Of results and the user's messages the first and the last word are looked for: templates write them as JSON, too.
    """
    for tool in tools:
        if (name := tool.get("function", tool).get("name", "")) not in text:
            raise TemplateRefused(f"the chat template does not show the tool {name!r} beside these messages")
    for number, one in enumerate(messages, 1):
        if one.get("role") in ("user", "tool") and isinstance(one.get("content"), str):
            words = _SHOWN_WORD.findall(one["content"])
            if lost := next((word for word in (words[:1] + words[-1:]) if word not in text), ""):
                whose = "a result" if one["role"] == "tool" else "the user"
                raise TemplateRefused(
                    f"the chat template does not show {lost[:60]!r} of message {number}, of {whose}"
                )
    systems = [
        (number, one["content"])
        for number, one in enumerate(messages, 1)
        if one.get("role") == "system" and isinstance(one.get("content"), str)
    ]
    shown = " ".join(text.split()) if systems else ""
    for number, content in systems:
        if " ".join(content.split()) not in shown:
            raise TemplateRefused(
                f"the chat template does not show the system message {content[:60]!r}, message {number}"
            )


def _with_texts(messages: list[Message]) -> list[Message]:
    """Return messages whose content is a text or a list: some templates write null as "None".

    Raises `TemplateRefused` for a message of the system or the user without any: a turn or a result may be empty.
    """
    for number, one in enumerate(messages, 1):
        if one.get("role") in ("system", "user") and one.get("content", "") is None:
            raise TemplateRefused(
                f"the chat template refuses the messages: message {number}, of the {one['role']}, has no content"
            )
    return [{**one, "content": ""} if one.get("content", "") is None else one for one in messages]


def _with_arguments(messages: list[Message], form: Callable[[Any], Any]) -> list[Message]:
    """Return the messages with the arguments of their calls in a form: `_read` or `_written`."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    found = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [
                {
                    **call,
                    "function": {**call["function"], "arguments": form(call["function"].get("arguments"))},
                }
                for call in message["tool_calls"]
            ]
            message = {**message, "tool_calls": calls}
        found.append(message)
    return found


def _read(arguments: Any) -> Any:
    """Return arguments as an object, also where they are JSON text, as in OpenAI's messages: templates would quote
    that once more, or fail."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(read := json.loads(arguments), dict):
                # Half of a surrogate pair, which JSON can name, is no text that a tokenizer takes.
                json.dumps(read, ensure_ascii=False).encode()
                return read
    return arguments


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _stand_in(
    messages: list[Message], mark: str, names: Mapping[str, str], calls_alone: bool = False
) -> Message:
    """An assistant turn that `messages` may follow: where they answer tool calls, it made those calls, and said nothing
    else where `calls_alone`."""
    answered = [m for m in messages if m["role"] == "tool"]
    if not answered:
        return {"role": "assistant", "content": mark}
    calls = [
        {
            "type": "function",
            "id": m.get("tool_call_id") or tool_call_id(number),
            "function": {
                "name": names.get(m.get("tool_call_id") or "") or m.get("name") or "f",
                "arguments": {"x": mark},
            },
        }
        for number, m in enumerate(answered)
    ]
    return {"role": "assistant", "content": "" if calls_alone else mark, "tool_calls": calls}


def _end_reasoning(turn: str, message: Message) -> str:
    """Return what follows a prompt that ends in an open <think>, for a turn as the template writes it in history."""
    if turn.startswith(_THINK):
        return turn.removeprefix(_THINK).lstrip("\n")
    reasoning = str(message.get("reasoning_content") or "")
    if not reasoning and _END_THINK in (text := str(message.get("content") or "")):
        reasoning = text.partition(_END_THINK)[0].removeprefix(_THINK)
    if turn.startswith(_END_THINK):
        return f"{reasoning.strip()}{turn}"
    return f"{reasoning.strip()}\n{_END_THINK}\n\n{turn}"


def _bytes(*token_ids: np.ndarray) -> bytes:
    """Return what is equal for equal ids, whatever the type of their arrays."""
    return b"".join(ids.astype(np.int32, copy=False).tobytes() for ids in token_ids)


def _digest(kind: str, messages: list[Message], tools: list[dict[str, Any]] | None) -> bytes:
    content = json.dumps([kind, messages, tools], default=repr)
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def import_tokenizers_only() -> None:
    """Import transformers without torch, for a process that loads tokenizers and no model by transformers afterwards.

    Importing torch is two thirds of what `load_renderer` costs otherwise. Does nothing where one is imported already.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    silent = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(silent)
    os.environ[silent] = "1"
    # A module that is None counts as missing; transformers asks once.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from transformers import AutoTokenizer, GenerationConfig  # noqa: F401 - it imports names when they are asked for
    finally:
        del sys.modules["torch"]
        del os.environ[silent]
        if before is not None:
            os.environ[silent] = before


def load_renderer(
    model: str, template_args: Mapping[str, Any] | None = None, template_file: str = ""
) -> ChatRenderer:
    """Load the tokenizer of a model folder or hub name, and the stop tokens that its generation config names.

    template_args: variables of the chat template. template_file: a template that takes the place of the model's own.
    Raises `ConfigError`.
    """
    tokenizer = load_tokenizer(model)
    if template_file:
        tokenizer.chat_template = read_template(template_file)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"model.path: {model!r} has no chat template, and multi-turn episodes need one; name a file of one in "
            "model.chat_template"
        )
    processor = None if (kind := kind_of(model)) is None else kind.image_processor(model)
    return ChatRenderer(tokenizer, generation_stops(model), processor, template_args)


def sampling_seed(run_seed: int, task_id: str, episode_index: int, turn: int) -> int:
    """Return a seed that depends on nothing but its arguments, for repeatable runs."""
    text = f"{run_seed}/{task_id}/{episode_index}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
