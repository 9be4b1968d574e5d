"""What a request continues, and the tokens of the rest.

A client's messages are compared with the recorded conversations of its episode. The longest one that is a
prefix of them provides its tokens; only the messages after it are rendered. Nothing sampled is tokenized again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from asyncrl.chat.renderer import ChatRenderer, TemplateRefused, called_names
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory, extend_key
from asyncrl.extensions.agents.gateway.fitting import fit_messages
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.tree import Call, token_ids
from asyncrl.images import moved
from asyncrl.types import PlacedImage

NO_IDS = np.empty(0, np.int32)


class Context(NamedTuple):
    """Tokens that the engine reads after what it is known to have read."""

    ids: np.ndarray
    """[N] int32."""
    images: tuple[PlacedImage, ...] = ()
    """What some of them stand for, counted from the first."""


def continue_chat(
    renderer: ChatRenderer, episode: Episode, history: ChatHistory
) -> tuple[Call | None, Context]:
    """Return the recorded call that a conversation continues, if any, and what follows it.

    Raises `InputError` when the chat template refuses the messages.
    """
    messages = history.messages
    if (cut := _cut_turn(renderer, episode, history)) is not None:
        return cut, Context(NO_IDS)
    parent, after = _longest(episode, history)
    context = None if parent is None else _rest(renderer, parent, history, after)
    if context is None:
        parent, after = None, 0
        ids = _whole(renderer, history)
        context = Context(ids, renderer.images(ids, messages))
    if history.prefill:
        begun = np.concatenate([context.ids, renderer.begin_turn(history.prefill)])
        context = Context(begun, context.images)
    for message in messages[after:]:
        if message["role"] == "assistant" and extend_key(b"", message) in episode.sampled_keys:
            # The agent rewrote what came before, so this turn is context here, in the template's tokens.
            episode.counters["rendered_turns"] += 1
    return parent, context


def render_whole(renderer: ChatRenderer, history: ChatHistory) -> np.ndarray:
    """Tokens of a conversation that continues nothing. [L] int32. Raises `InputError` when the template refuses it."""
    whole = _whole(renderer, history)
    return np.concatenate([whole, renderer.begin_turn(history.prefill)]) if history.prefill else whole


def _whole(renderer: ChatRenderer, history: ChatHistory) -> np.ndarray:
    fitted = fit_messages(history.messages, renderer.traits, opening=True)
    return _render(lambda: renderer.opening(fitted, history.tools))


def _cut_turn(renderer: ChatRenderer, episode: Episode, history: ChatHistory) -> Call | None:
    """Return the recorded turn that a client asks to continue where it was cut; its own tokens go on then."""
    if not history.prefill:
        return None
    said = {"role": "assistant", "content": history.prefill}
    call = episode.tree.find(extend_key(history.key(), said))
    if call is None or not len(call.generated.token_ids):
        return None
    exact = renderer.text(call.generated.token_ids) == history.prefill
    return call if exact and call.generated.token_ids[-1] not in renderer.stop_token_ids else None


def continue_text(renderer: ChatRenderer, episode: Episode, prompt: str) -> tuple[Call | None, Context]:
    """The same for a plain prompt, which may start with an earlier prompt and its completion."""
    ends = [
        c
        for c in episode.tree.calls
        if c.text_end is not None and c.text_end and prompt.startswith(c.text_end)
    ]
    parent = max(ends, key=lambda c: (len(c.text_end or ""), -c.num_children), default=None)
    rest = prompt[len(parent.text_end or "") :] if parent else prompt
    return parent, _text(
        renderer, np.asarray(renderer.tokenizer.encode(rest, add_special_tokens=False), np.int32)
    )


def continue_ids(renderer: ChatRenderer, episode: Episode, ids: np.ndarray) -> tuple[Call | None, Context]:
    """The same for a prompt of token ids. [L] int32."""
    best, length = None, 0
    for call in episode.tree.calls:
        known = token_ids(call)
        if length < len(known) <= len(ids) and np.array_equal(known, ids[: len(known)]):
            best, length = call, len(known)
    return best, _text(renderer, ids[length:])


def _text(renderer: ChatRenderer, ids: np.ndarray) -> Context:
    """Tokens of a plain prompt. Raises `InputError` for the image token, which would stand for no image."""
    processor = renderer.image_processor
    if processor is not None and (ids == processor.image_token_id).any():
        raise InputError("prompt: must not hold the image token; images are read from chat messages")
    return Context(ids)


def _longest(episode: Episode, history: ChatHistory) -> tuple[Call | None, int]:
    for count, key in history.prefixes():
        # Nothing follows the last message, so it cannot be what is continued.
        if count < len(history.messages):
            call = episode.tree.find(key, history.call_ids[count - 1])
            if call is not None:
                return call, count
    return None, 0


def _rest(renderer: ChatRenderer, parent: Call, history: ChatHistory, after: int) -> Context | None:
    """What comes after the parent's turn; None where the template writes a turn differently once more follows."""
    try:
        names = called_names(history.messages[after - 1])
        fitted = fit_messages(history.messages[after:], renderer.traits, opening=False)
        rest = _render(lambda: renderer.observation(fitted, history.tools, names))
    except ConfigError:
        return None
    images = renderer.images(rest, history.messages[after:])
    sampled = parent.generated.token_ids
    if len(sampled) and sampled[-1] in renderer.stop_token_ids:
        return Context(rest, images)
    # A turn that was cut did not end itself, so the end of turn is context.
    end = np.asarray(renderer.stop_token_ids[:1], np.int32)
    return Context(np.concatenate([end, rest]), moved(images, len(end)))


def _render(render: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return render()
    except TemplateRefused as error:
        raise InputError(f"messages: the model's chat template refuses them: {error.reason}") from error
