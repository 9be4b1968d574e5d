"""Answers one call: prepare (what does it continue), sample, record."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_calls import TurnParser
from asyncrl.chat.tool_formats import SplitReasoning, TurnFormat
from asyncrl.env.protocol import ToolCall
from asyncrl.errors import ConfigError, InfrastructureError, InputError
from asyncrl.extensions.agents.gateway.callers import caller_by_words
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory, extend_key, tool_call
from asyncrl.extensions.agents.gateway.client_headers import UNKNOWN
from asyncrl.extensions.agents.gateway.pauses import Pauses
from asyncrl.extensions.agents.gateway.pieces import PIECE_TOKENS, cut_at_stop, first_stop, join, settled
from asyncrl.extensions.agents.gateway.prefixes import Context, continue_chat, continue_ids, continue_text
from asyncrl.extensions.agents.gateway.recorded_episode import Episode, EpisodeEnded
from asyncrl.extensions.agents.gateway.sampling import ContextTooLong, Prepared, Sampled, Sampling
from asyncrl.extensions.agents.gateway.tree import Call, digest, images, path, token_ids
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.images import MAX_IMAGES, moved
from asyncrl.rollout.elsewhere import Engines
from asyncrl.together import together
from asyncrl.types import IMAGES, Message

OnText = Callable[[str], None]
MAX_READINGS = 16
"""Sets of the template's variables that are kept ready."""


class Reading(NamedTuple):
    """How conversations are rendered and turns are read."""

    renderer: ChatRenderer
    parse: TurnParser
    split: SplitReasoning | None


class Sampler:
    """Shared by all episodes of a gateway."""

    def __init__(
        self,
        engines: Engines,
        renderer: ChatRenderer,
        parse: TurnParser,
        max_tokens: int = 0,
        split: SplitReasoning | None = None,
        reread: Callable[[ChatRenderer], TurnFormat] | None = None,
    ) -> None:
        """max_tokens: limit on a conversation with its answer; 0 for that of the engines alone.

        split: takes the reasoning from turns that may call nothing; None leaves it in their text. reread: how turns are
        read under other variables of the chat template, which may begin them inside or outside of their reasoning; None
        where that is the same.
        """
        self.engines = engines
        self.renderer = renderer
        self.parse = parse
        self.split = split
        self.max_tokens = max_tokens
        self.pauses = Pauses()
        self._reread = reread
        self._readings: OrderedDict[str, Reading] = OrderedDict()
        """By the variables of the chat template that clients gave, the latest of them."""

    def reading(self, template: Mapping[str, Any]) -> Reading:
        """Return how a conversation is rendered and its turns are read, with a client's variables of the template.

        Raises `InputError` where the template does not take them.
        """
        if not template:
            return Reading(self.renderer, self.parse, self.split)
        key = json.dumps(template, sort_keys=True)
        if (known := self._readings.get(key)) is None:
            try:
                renderer = self.renderer.with_options(template)
                known = Reading(renderer, self.parse, self.split)
                if self._reread is not None and renderer is not self.renderer:
                    known = Reading(renderer, *self._reread(renderer))
            except ConfigError as error:
                raise InputError(f"chat_template_kwargs: {error}") from error
            self._readings[key] = known
            if len(self._readings) > MAX_READINGS:
                self._readings.popitem(last=False)
        self._readings.move_to_end(key)
        return known

    async def context_limit(self, episode: Episode) -> int:
        """Return the longest context with its answer in this episode, in tokens.

        Raises `InfrastructureError` where that is not known because no engine has answered yet.
        """
        served = await self.engines.context_limit()
        limits = [n for n in (episode.spec.max_tokens, self.max_tokens, served) if n]
        if not limits:
            episode.counters["infrastructure_errors"] += 1
            episode.lost = True
            raise InfrastructureError("no engine answers, so the length of its contexts is not known")
        return min(limits)

    async def prepare_chat(self, episode: Episode, history: ChatHistory, sampling: Sampling) -> Prepared:
        """Find what a conversation continues.

        Raises `InputError`, `ContextTooLong`, `EpisodeEnded`, `InfrastructureError`.
        """
        limit = await self.context_limit(episode)
        episode.check_open()
        renderer = self.reading(sampling.template).renderer
        parent, context = continue_chat(renderer, episode, history)
        return self._prepared(episode, sampling, parent, context, limit, history=history)

    async def prepare_prompt(self, episode: Episode, prompt: str | list[int], sampling: Sampling) -> Prepared:
        """The same for a plain prompt, text or token ids."""
        limit = await self.context_limit(episode)
        episode.check_open()
        if isinstance(prompt, str):
            parent, context = continue_text(self.renderer, episode, prompt)
            return self._prepared(episode, sampling, parent, context, limit, prompt_text=prompt)
        parent, context = continue_ids(self.renderer, episode, np.asarray(prompt, np.int32))
        return self._prepared(episode, sampling, parent, context, limit)

    async def sample(self, prepared: Prepared, on_text: OnText | None = None) -> list[Sampled]:
        """Sample the answers. `on_text` receives the text of a single answer as it grows.

        Raises `InfrastructureError` when no engine can serve, `EpisodeEnded` when the episode ends meanwhile.
        """
        start = time.monotonic()
        try:
            if prepared.sampling.n == 1:
                return [await self._answer(prepared, 0, on_text)]
            return await together(self._answer(prepared, i, None) for i in range(prepared.sampling.n))
        except InfrastructureError:
            prepared.episode.counters["infrastructure_errors"] += 1
            prepared.episode.lost = True
            raise
        finally:
            prepared.episode.engine_s += time.monotonic() - start

    def record(self, prepared: Prepared, answers: list[Sampled]) -> list[Call]:
        """Add the answers to the episode's tree; to be done before the client can see them."""
        episode = prepared.episode
        episode.check_open()
        if not episode.recorded:
            return []
        calls = []
        for index, sampled in enumerate(answers):
            call = episode.tree.add(
                Call(
                    call_id(prepared.id, index),
                    prepared.parent,
                    prepared.context,
                    sampled.generated,
                    prepared.read_digest,
                    root=prepared.root,
                    tool_ids=sampled.tool_ids,
                    agent=prepared.sampling.agent,
                    caller=prepared.caller,
                    images=prepared.images,
                    text_end=self._text_end(prepared, sampled),
                    messages=self._messages(prepared, sampled),
                    num_messages=len(prepared.history.messages) + 1 if prepared.history is not None else 0,
                    cut=prepared.max_tokens_from if sampled.finish_reason == "length" else "",
                    thread=prepared.sampling.thread,
                    tools=prepared.history is not None and bool(prepared.history.tools),
                    asked_after=prepared.asked_after,
                ),
                self._keys(prepared, sampled),
            )
            episode.count_call(prepared.read_ids, sampled.generated)
            episode.cut = call.cut
            episode.counters["cut_turns"] += bool(call.cut)
            calls.append(call)
        self.pauses.began(calls[-1].id)
        longest = len(prepared.read_ids) + max(len(s.generated.token_ids) for s in answers)
        ttl_s = self.pauses.ttl_s if prepared.sampling.ttl_s is None else prepared.sampling.ttl_s
        self.engines.hold(prepared.session, longest, ttl_s)
        return calls

    def end(self, episode: Episode) -> None:
        """Stop the requests that an episode still has running, and release its cached contexts."""
        for task in list(episode.running.values()):
            task.cancel()
        for root in {call.root for call in episode.tree.calls}:
            self.engines.hold(_session(episode, root), 0, 0.0)

    def _prepared(
        self,
        episode: Episode,
        sampling: Sampling,
        parent: Call | None,
        context: Context,
        limit: int,
        history: ChatHistory | None = None,
        prompt_text: str | None = None,
    ) -> Prepared:
        spec = episode.spec
        made = len(episode.tree.calls) + len(episode.running)
        if spec.max_calls and made + sampling.n > spec.max_calls:
            episode.limit = episode.limit or "max_calls"
            raise InputError(f"this episode may make {spec.max_calls} calls; it has made {made}")
        before = token_ids(parent)
        read_ids = np.concatenate([before, context.ids])
        seen = (*(images(path(parent)) if parent else ()), *moved(context.images, len(before)))
        if len(seen) > MAX_IMAGES:
            raise InputError(f"messages: must hold at most {MAX_IMAGES} images, got {len(seen)}")
        room = limit - len(read_ids)
        if not len(read_ids):
            raise InputError("prompt: must not be empty")
        if room < 1:
            episode.limit = episode.limit or "max_tokens"
            raise ContextTooLong(len(read_ids), limit)
        caller = _caller(episode, sampling, history) if parent is None else None
        episode.touched = episode.clock()
        episode.count_ignored(sampling.ignored, sampling.program or UNKNOWN)
        if parent is not None:
            self.pauses.ended(parent.id)
        if episode.limit == "max_tokens":
            # The agent has shortened its conversation, and goes on.
            episode.limit = ""
        limits = (
            (room, "max_tokens"),
            (spec.max_tokens_per_turn, "max_tokens_per_turn"),
            (sampling.max_tokens, ""),
        )
        # Of equal ones the client's own, which is its choice.
        max_tokens, limited_by = min((n, name) for n, name in limits if n)
        root = parent.root if parent is not None else episode.next_root()
        read_digest = digest(read_ids, seen)
        # Without an episode nothing is kept of a call: neither how often it was made nor where it was served.
        occurrence = 1
        if episode.recorded:
            episode.contexts[read_digest] += 1
            occurrence = episode.contexts[read_digest]
        return Prepared(
            id=sampling.id_prefix + uuid.uuid4().hex,
            episode=episode,
            sampling=sampling,
            parent=parent,
            context=context.ids,
            read_ids=read_ids,
            images=context.images,
            read_images=seen,
            read_digest=read_digest,
            occurrence=occurrence,
            max_tokens=max_tokens,
            max_tokens_from=limited_by,
            root=root,
            caller=caller,
            session=_session(episode, root) if episode.recorded else "",
            asked_after=len(episode.tree.calls),
            history=history,
            prompt_text=prompt_text,
        )

    async def _answer(self, prepared: Prepared, index: int, on_text: OnText | None) -> Sampled:
        stop, decoding = prepared.sampling.stop, prepared.sampling.decoding
        if not stop and on_text is None:
            generated = await self._generate(prepared, index, 0, prepared.read_ids, prepared.max_tokens)
            return self._read(prepared, generated, "")
        pieces: list[Generated] = []
        shown, left, stopped = 0, prepared.max_tokens, ""
        while True:
            read_ids = np.concatenate([prepared.read_ids, *(p.token_ids for p in pieces)])
            size = left if decoding is not None and decoding.whole else min(left, PIECE_TOKENS)
            pieces.append(await self._generate(prepared, index, len(pieces), read_ids, size))
            left -= len(pieces[-1].token_ids)
            generated, stopped = cut_at_stop(join(pieces), stop, self.renderer.text)
            ended = stopped or generated.finish_reason != "length" or left < 1
            text = _before_stop(self.renderer.text(generated.token_ids), stop)
            ready = len(text) if ended else settled(text, stop)
            if on_text is not None and ready > shown:
                on_text(text[shown:ready])
                shown = ready
            if ended:
                return self._read(prepared, generated, stopped)

    async def _generate(
        self, prepared: Prepared, index: int, piece: int, read_ids: np.ndarray, max_tokens: int
    ) -> Generated:
        episode, sampling = prepared.episode, prepared.sampling
        fixed = episode.spec.temperature
        request = GenerateRequest(
            id=f"{prepared.id}-{index}-{piece}",
            token_ids=read_ids,
            max_tokens=max_tokens,
            temperature=sampling.temperature if fixed is None else fixed,
            seed=_seed(prepared, index, piece),
            stop_token_ids=self.renderer.stop_token_ids,
            session=prepared.session,
            min_version=episode.spec.min_version,
            order=episode.spec.order,
            decoding=sampling.decoding,
            extras={IMAGES: prepared.read_images} if prepared.read_images else {},
        )
        # In a task of its own, so that ending the episode ends the wait without cancelling the HTTP handler.
        task = asyncio.ensure_future(self.engines.generate(request))
        episode.running[request.id] = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            del episode.running[request.id]
        if task.cancelled():
            raise EpisodeEnded(f"episode {episode.id} has ended")
        return task.result()

    def _read(self, prepared: Prepared, generated: Generated, stop_string: str) -> Sampled:
        """Turn sampled tokens into what clients see."""
        text = self.renderer.text(generated.token_ids)
        text = text[: text.index(stop_string)] if stop_string else text
        history = prepared.history
        reading = self.reading(prepared.sampling.template)
        begun = history.prefill if history is not None else ""
        reasoning, content = "", text
        if reading.split is not None and history is not None and not begun:
            reasoning, content = (part.strip() for part in reading.split(text))
        calls: tuple[ToolCall, ...] = ()
        if history is not None and history.tools and prepared.sampling.parse_tools:
            action = reading.parse(begun + text, history.tools)
            if action.tool_calls:
                content, calls = action.content.removeprefix(begun.strip()), action.tool_calls
            prepared.episode.counters["malformed_tool_calls"] += len(action.parse_errors)
        message: Message = {"role": "assistant", "content": begun + content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [tool_call(i, c.name, c.arguments) for i, c in enumerate(calls)]
        ids = tuple(f"call_{uuid.uuid4().hex[:24]}" for _ in calls)
        return Sampled(generated, text, generated.finish_reason, stop_string, content, calls, ids, message)

    def _messages(self, prepared: Prepared, sampled: Sampled) -> tuple[Message, ...]:
        """What the call added to its conversation; a plain prompt is taken for one message of a user."""
        if prepared.history is None:
            text = self.renderer.tokenizer.decode(prepared.context.tolist(), skip_special_tokens=False)
            return {"role": "user", "content": text}, sampled.message
        before = prepared.parent.num_messages if prepared.parent else 0
        if before > len(prepared.history.messages):
            # The parent was cut, and its turn goes on.
            return ({**sampled.message, "content": sampled.content},)
        return *prepared.history.messages[before:], sampled.message

    def _text_end(self, prepared: Prepared, sampled: Sampled) -> str | None:
        """Prompt and completion of a plain text call, with the end of turn and the stop string if sampled."""
        if prepared.prompt_text is None:
            return None
        ids = sampled.generated.token_ids.tolist()
        return prepared.prompt_text + self.renderer.tokenizer.decode(ids, skip_special_tokens=False)

    def _keys(self, prepared: Prepared, sampled: Sampled) -> list[bytes]:
        """The keys the conversation may have once the client has added this answer to it."""
        if prepared.history is None:
            return []
        messages = [sampled.message]
        if sampled.stop_string and not sampled.tool_calls:
            # Some frameworks put the stop string back before they return the message.
            messages.append(
                {"role": "assistant", "content": sampled.message["content"] + sampled.stop_string}
            )
        if sampled.tool_calls and sampled.content:
            # Others, such as CrewAI's, drop the text of a turn that calls.
            messages.append({**sampled.message, "content": ""})
        prepared.episode.sampled_keys.update(extend_key(b"", message) for message in messages)
        key = prepared.history.key()
        return [extend_key(key, message) for message in messages]


def call_id(prepared_id: str, index: int) -> str:
    """Id of an answer: that of the response, with the number of the choice after the first."""
    return prepared_id if index == 0 else f"{prepared_id}:{index}"


def _caller(episode: Episode, sampling: Sampling, history: ChatHistory | None) -> Call | None:
    """Return the call that started a new conversation, where the client names it or its words show it.

    Raises `InputError`.
    """
    if not episode.recorded:
        return None
    if not sampling.caller:
        told = caller_by_words(episode.tree, history.messages) if history is not None else None
        return told or episode.tree.latest_of(sampling.caller_thread)
    found = episode.tree.starter(sampling.caller)
    if found is None:
        raise InputError(
            f"x-asyncrl-caller: this episode has no call {sampling.caller!r}; give the id of the tool call that starts "
            "the sub-agent, or of the answer that holds it"
        )
    return found


def _session(episode: Episode, root: int) -> str:
    return f"{episode.id}/{root}"


def _before_stop(text: str, stop: tuple[str, ...]) -> str:
    at = first_stop(text, stop)[0]
    return text if at < 0 else text[:at]


def _seed(prepared: Prepared, index: int, piece: int) -> int | None:
    """A seed from the episode's and what the engine reads, the same whatever else the agent runs meanwhile."""
    spec, asked = prepared.episode.spec, prepared.sampling.seed
    if spec.seed is None and (spec.temperature is not None or asked is None):
        return None
    name = f"{spec.seed}/{asked}/{spec.task_id}/{spec.episode_index}/{prepared.occurrence}/{index}/{piece}"
    mixed = hashlib.blake2b(name.encode() + prepared.read_digest, digest_size=7)
    return int.from_bytes(mixed.digest(), "little")
