"""Thinking of so many tokens at most, or at least (budget forcing, s1: arXiv 2501.19393).

    most    thinking that has not ended after so many tokens is ended: `</think>` is put behind it; the answer follows
    least   where `</think>` is sampled before, "Wait" is put in its place, and thinking goes on; `WAITS` times at most

A turn is sampled in pieces, each on the tokens of those before it: what was sampled is never made into tokens again,
and what is put in is no part of what the policy has chosen: no version has sampled it, so that training leaves it out
of the loss, and it is context to what follows. A turn that does not think is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.thinking.settings import ThinkingConfig, TrainedThinkingConfig
from asyncrl.generation import Generated, GenerateRequest, Generator, common_engine
from asyncrl.types import NOT_SAMPLED

OPEN, CLOSE = "<think>", "</think>"
WAIT = "Wait"
AFTER_CLOSE = "\n\n"
WAITS = 16
"""Times that thinking is prolonged at most: a model that ends it at once each time has no more to say."""
TAIL = 4
"""Tokens at the end of a prompt among which a template opens, or closes, the thinking."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens of what is looked for, and of what is put in."""

    open: int
    close: int
    closing: tuple[int, ...]
    """`</think>` and the blank lines behind it."""
    wait: tuple[int, ...]


class ThinkingBudget:
    """Samples from another generator. Implements `Generator`."""

    def __init__(self, generator: Generator, marks: Marks, most: int | None, least: int = 0) -> None:
        self.generator = generator
        self.marks = marks
        self.most = most
        self.least = least

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`."""
        tail = request.token_ids[-TAIL:].tolist()
        if self.marks.close in tail:
            return await self.generator.generate(request)
        turn = _Turn(self.generator, request)
        opened, waits = self.marks.open in tail, 0
        while True:
            left = None if self.most is None else self.most - turn.tokens
            found = await turn.sample(left, (self.marks.close,)) if left is None or left > 0 else None
            opened = opened or (found is not None and self.marks.open in found.token_ids)
            closed = (
                found is not None and len(found.token_ids) > 0 and found.token_ids[-1] == self.marks.close
            )
            if closed and turn.tokens < self.least and waits < WAITS and turn.room > 1:
                turn.drop_last()
                turn.put(self.marks.wait)
                waits += 1
                continue
            if found is not None and not closed and (found.finish_reason == "stop" or turn.room < 1):
                return turn.generated()
            if not closed and not opened:
                # It has not thought so far, and must not begin to.
                rest = await turn.sample(None, (self.marks.open,))
                opened = len(rest.token_ids) > 0 and rest.token_ids[-1] == self.marks.open
                if not opened:
                    return turn.generated()
            if not closed:
                turn.put(self.marks.closing)
            if turn.room > 0:
                await turn.sample(None)
            return turn.generated()


class _Turn:
    """A turn in pieces."""

    def __init__(self, generator: Generator, request: GenerateRequest) -> None:
        self.generator = generator
        self.request = request
        self.pieces: list[Generated] = []

    @property
    def tokens(self) -> int:
        """How many it has."""
        return sum(len(piece.token_ids) for piece in self.pieces)

    @property
    def room(self) -> int:
        """How many more it may have."""
        return self.request.max_tokens - self.tokens

    async def sample(self, most: int | None, stops: tuple[int, ...] = ()) -> Generated:
        """Sample a further piece, of `most` tokens at most; `stops` end it, too."""
        given, number = self.request, len(self.pieces)
        seed = None if given.seed is None else given.seed + number
        piece = await self.generator.generate(
            replace(
                given,
                id=f"{given.id}+{number}",
                token_ids=np.concatenate([given.token_ids, *(one.token_ids for one in self.pieces)]),
                max_tokens=self.room if most is None else min(most, self.room),
                seed=seed,
                stop_token_ids=(*given.stop_token_ids, *stops),
            )
        )
        self.pieces.append(piece)
        return piece

    def drop_last(self) -> None:
        """Leave out the token that was sampled last."""
        last = self.pieces[-1]
        self.pieces[-1] = replace(
            last, token_ids=last.token_ids[:-1], logprobs=last.logprobs[:-1], versions=last.versions[:-1],
            top_logprobs=last.top_logprobs[:-1],
        )  # fmt: skip

    def put(self, token_ids: Sequence[int]) -> None:
        """Append tokens that nobody sampled, as far as there is room."""
        ids = np.array(token_ids[: self.room], np.int32)
        self.pieces.append(
            Generated(ids, np.zeros(len(ids), np.float32), np.full(len(ids), NOT_SAMPLED, np.int32), "length")
        )

    def generated(self) -> Generated:
        """Return the whole turn."""
        sampled = [one for one in self.pieces if one.engine] or self.pieces
        if len(self.pieces) == 1:
            return self.pieces[0]
        return Generated(
            np.concatenate([one.token_ids for one in self.pieces]).astype(np.int32),
            np.concatenate([one.logprobs for one in self.pieces]).astype(np.float32),
            np.concatenate([one.versions for one in self.pieces]).astype(np.int32),
            self.pieces[-1].finish_reason,
            cached_tokens=self.pieces[0].cached_tokens,
            engine=common_engine(one.engine for one in sampled),
        )


def marks_of(renderer: ChatRenderer, keys: str) -> Marks:
    """Return the marks of a model. Raises `ConfigError` where they are not tokens of their own.

    keys: those that ask for a budget.
    """
    found = {text: _ids(renderer, text) for text in (OPEN, CLOSE)}
    for text, ids in found.items():
        if len(ids) != 1:
            raise ConfigError(
                f"{keys}: must be left out for this model, to which {text} is "
                f"{len(ids)} tokens and not one: it has no thinking that could be ended"
            )
    closing, wait = _ids(renderer, CLOSE + AFTER_CLOSE), _ids(renderer, WAIT)
    return Marks(found[OPEN][0], found[CLOSE][0], tuple(closing), tuple(wait))


def _ids(renderer: ChatRenderer, text: str) -> list[int]:
    return [int(one) for one in renderer.tokenizer.encode(text, add_special_tokens=False)]


def budgeted(config: Config, renderer: ChatRenderer, generator: Generator) -> ThinkingBudget:
    """Return what samples the turns of a run's evaluations. Raises `ConfigError`."""
    given = config.section(ThinkingConfig)
    marks = marks_of(renderer, "eval.most_thinking and eval.least_thinking")
    return ThinkingBudget(generator, marks, given.most_thinking, given.least_thinking or 0)


def budgeted_training(config: Config, renderer: ChatRenderer, generator: Generator) -> ThinkingBudget:
    """Return what samples the turns that a run is trained on. Raises `ConfigError`."""
    given = config.section(TrainedThinkingConfig)
    return ThinkingBudget(generator, marks_of(renderer, "rollout.most_thinking"), given.most_thinking)
