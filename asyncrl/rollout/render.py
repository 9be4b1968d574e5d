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

from asyncrl.errors import ConfigError
from asyncrl.types import Message

_USER = {"role": "user", "content": "?"}
_ASSISTANT = {"role": "assistant", "content": "?"}
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
        key = json.dumps(messages, sort_keys=True)
        if (cached := self._cache.get(key)) is None:
            cached = self._encode(self._after_assistant(messages, tools))
            self._remember(key, cached)
        return cached

    def assistant(self, message: Message, tools: list[dict[str, Any]] | None = None) -> np.ndarray:
        """Return the ids a policy would sample to write `message`, stop token included. [L] int32."""
        before = self._render([_USER], tools, generate=True)
        full = self._render([_USER, message], tools, generate=False)
        end = full.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token)
        if not full.startswith(before):
            raise ConfigError(
                "the chat template writes more before an assistant turn than the generation prompt"
            )
        return self._encode(full[len(before) : end])

    def text(self, token_ids: np.ndarray) -> str:
        """Decode a sampled turn, without its stop token."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] in self.stop_token_ids else token_ids
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def matches_history(
        self, token_ids: np.ndarray, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> bool:
        """True when rendering the whole conversation afresh gives the text of `token_ids`.

        False means the template rewrites history (drops earlier reasoning, say) or the model wrote what the
        template would not. Training uses `token_ids` either way; the caller counts the difference.
        """
        fresh = self._render(messages, tools, generate=False).rstrip("\n")
        kept = self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False).rstrip("\n")
        return fresh == kept

    def _remember(self, key: str, ids: np.ndarray) -> None:
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        ids.flags.writeable = False
        self._cache[key] = ids

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, generate: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=generate, tokenize=False
        )

    def _encode(self, text: str) -> np.ndarray:
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _after_assistant(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        before = self._render([_USER, _ASSISTANT], tools, generate=False)
        full = self._render([_USER, _ASSISTANT, *messages], tools, generate=True)
        cut = before.rindex(self.tokenizer.eos_token) + len(self.tokenizer.eos_token)
        if not full.startswith(before[:cut]):
            raise ConfigError("the chat template rewrites an assistant turn when messages follow it")
        return full[cut:]

    def _check_template(self) -> None:
        try:
            self._after_assistant([{"role": "user", "content": "x"}], None)
        except ValueError as error:
            raise ConfigError(
                f"the chat template must end assistant turns with the tokenizer's eos_token "
                f"{self.tokenizer.eos_token!r}: {error}"
            ) from error


def load_renderer(model: str) -> ChatRenderer:
    """Load the tokenizer of a model folder or hub name."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        raise ConfigError(f"model {model!r} has no chat template; multi-turn episodes need one")
    return ChatRenderer(tokenizer)


def sampling_seed(run_seed: int, task_id: str, episode_index: int, turn: int) -> int:
    """Return a seed that depends on nothing but its arguments, for repeatable runs."""
    text = f"{run_seed}/{task_id}/{episode_index}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
