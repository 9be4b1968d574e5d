"""Messages to tokens, append-only: sampled turns keep the ids the engine sampled, forever.

The opening messages are rendered once through the chat template. After that each new observation is
rendered as what the template adds *after* an assistant turn, and only those ids are appended.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jinja2.exceptions import TemplateError

from asyncrl.errors import ConfigError, InputError
from asyncrl.types import Message

_USER = {"role": "user", "content": "?"}
_MARK = "asyncrlmark"
"""Content of a stand-in assistant turn, found again in the rendered text; lengthened where messages hold it."""
_CACHE_SIZE = 65536


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used."""

    eos_token_id: Any
    eos_token: Any

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any: ...
    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, token_ids: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one episode, in turns and tokens."""

    max_turns: int
    max_tokens_per_turn: int
    max_tokens: int


class ChatRenderer:
    """Renders one model family's chat template. Share one per process: it caches observations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stop_token_ids = (tokenizer.eos_token_id,)
        self._cache: dict[str, np.ndarray] = {}
        self._check_template()

    def opening(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids of the opening messages up to where the assistant starts. [L] int32."""
        key = json.dumps([messages, tools], sort_keys=True)
        if (cached := self._cache.get(key)) is None:
            cached = self._encode(self._render(messages, tools, generate=True))
            self._remember(key, cached)
        return cached

    def observation(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids that follow a sampled turn when `messages` answer it. [L] int32.

        They start after the stop token, so what the template writes between it and the next message
        (often a newline) is included.
        """
        key = json.dumps(["observation", messages, tools], sort_keys=True)
        if (cached := self._cache.get(key)) is None:
            cached = self._encode(self._after_assistant(messages, tools))
            self._remember(key, cached)
        return cached

    def assistant(self, message: Message, tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids a policy would sample to write `message`, stop token included. [L] int32."""
        return self._encode(self._assistant_text(message, tools))

    def text(self, token_ids: np.ndarray) -> str:
        """Decode a sampled turn, without its stop token."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] in self.stop_token_ids else token_ids
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)

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
        # Behind an observation the tokens go on with the generation prompt, and perhaps a turn that was cut.
        waiting = messages[-1]["role"] != "assistant"
        fresh, kept = self._try_render(messages, tools, generate=waiting), self._text(token_ids)
        if fresh is not None and (
            kept.startswith(fresh) if waiting else kept.rstrip("\n") == fresh.rstrip("\n")
        ):
            return True, 0
        sampled = [self._text(turn) for turn in turns]
        forks = self._forks_in_pieces(fresh or "", messages, num_opening, sampled, tools)
        if forks is None:
            forks = self._forks_in_prompts(messages, num_opening, sampled, tools)
        return False, forks

    def _forks_in_pieces(
        self,
        fresh: str,
        messages: list[Message],
        num_opening: int,
        sampled: list[str],
        tools: list[dict[str, Any]] | None,
    ) -> int | None:
        """Count the forks of a template that only appends, rendering each message once; None for any other.

        Where the messages' own renderings, one after the other, begin the rendering `fresh` of all, each prompt is a
        beginning of it too, and the next one forks exactly where a turn's rendering does not begin with its tokens.
        """
        whole, answered = self._text(self.opening(messages[:num_opening], tools)), num_opening
        differs: list[bool] = []
        for i in range(num_opening, len(messages)):
            if messages[i]["role"] != "assistant":
                continue
            if i > answered:
                whole += self._text(self.observation(messages[answered:i], tools))
            try:
                turn = self._assistant_text(messages[i], tools)
            except (ConfigError, TemplateError):
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
        """Count the forks of any template by rendering every prompt."""
        forks, expected, following = 0, "", iter(sampled)
        for i, message in enumerate(messages):
            if i < num_opening or message["role"] != "assistant":
                continue
            prompt = self._try_render(messages[:i], tools, generate=True)
            forks += prompt is None or not prompt.startswith(expected)
            expected = (prompt or "") + next(following)
        return forks

    def _remember(self, key: str, ids: np.ndarray) -> None:
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        ids.flags.writeable = False
        self._cache[key] = ids

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=generate, tokenize=False
        )

    def _assistant_text(self, message: Message, tools: list[dict[str, Any]] | None) -> str:
        before = self._render([_USER], tools, generate=True)
        full = self._render([_USER, message], tools, generate=False)
        end = full.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token)
        if not full.startswith(before):
            raise ConfigError(
                "the chat template writes more before an assistant turn than the generation prompt"
            )
        return full[len(before) : end]

    def _try_render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool
    ) -> str | None:
        """As `_render`, or None where the template refuses the messages."""
        try:
            return self._render(messages, tools, generate)
        except TemplateError:
            return None

    def _text(self, token_ids: np.ndarray) -> str:
        return self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)

    def _encode(self, text: str) -> np.ndarray:
        try:
            text.encode()
        except UnicodeEncodeError:
            message = "the text holds half a surrogate pair, which no tokenizer takes; send whole characters"
            raise InputError(message) from None
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _after_assistant(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        """The text behind a stand-in turn's stop token. Looked for in the whole rendering, because what a template
        writes for that turn may depend on whether messages follow it (Qwen3 drops its reasoning then)."""
        mark, given = _MARK, json.dumps([messages, tools])
        while mark in given:
            mark += "x"
        full = self._render([_USER, _stand_in(messages, mark), *messages], tools, generate=True)
        end = full.index(self.tokenizer.eos_token, full.rindex(mark)) + len(self.tokenizer.eos_token)
        return full[end:]

    def _check_template(self) -> None:
        try:
            self._after_assistant([{"role": "user", "content": "x"}], None)
        except ValueError as error:
            raise ConfigError(
                f"the chat template must end assistant turns with the tokenizer's eos_token "
                f"{self.tokenizer.eos_token!r}: {error}"
            ) from error


def _stand_in(messages: list[Message], mark: str) -> Message:
    """An assistant turn that `messages` may follow: where they answer tool calls, it made those calls."""
    answered = [m for m in messages if m["role"] == "tool"]
    if not answered:
        return {"role": "assistant", "content": mark}
    calls = [
        {
            "type": "function",
            "id": m.get("tool_call_id") or f"call{number:05d}",
            "function": {"name": m.get("name") or "f", "arguments": {"x": mark}},
        }
        for number, m in enumerate(answered)
    ]
    return {"role": "assistant", "content": mark, "tool_calls": calls}


def load_renderer(model: str) -> ChatRenderer:
    """Load the tokenizer of a model folder or hub name. Raises `ConfigError`."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(
            f"model.path: no tokenizer can be loaded from {model!r}; give a Hugging Face model folder or a hub name "
            f"({reason})"
        ) from error
    if not tokenizer.chat_template:
        raise ConfigError(f"model {model!r} has no chat template; multi-turn episodes need one")
    return ChatRenderer(tokenizer)


def sampling_seed(run_seed: int, task_id: str, episode_index: int, turn: int) -> int:
    """Return a seed that depends on nothing but its arguments, for repeatable runs."""
    text = f"{run_seed}/{task_id}/{episode_index}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
