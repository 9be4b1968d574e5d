"""A recorded episode's turns in place of a model: what was sampled then is returned to whoever asks the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.env.protocol import MAIN_AGENT, agent_of
from asyncrl.errors import AgentError, InputError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.types import IMAGES, Status

SHOWN_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an episode that was played again first leaves the recorded one."""

    where: str
    recorded: str
    now: str


class RecordedTurns:
    """A `Generator` for an environment's episode: the turns of each agent, one after the other."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._left = {agent_of(row["info"]): deque(_turns(row)) for row in rows}

    async def generate(self, request: GenerateRequest) -> Generated:
        """Return the agent's next turn. Raises `AgentError` where the recorded episode had no further one."""
        left = self._left.get(request.agent)
        if not left:
            who = f"agent {request.agent!r}" if request.agent != MAIN_AGENT else "the policy"
            raise AgentError(f"the environment asks for a turn of {who} that was not recorded")
        return left.popleft()


class RecordedCalls:
    """The `rollout.elsewhere.Engines` of an agent's episode: a call gets what was sampled after the same tokens.

    max_tokens: limit on a conversation with its answer.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.difference: Difference | None = None
        """How the first call that asked for something else differed."""
        self._rows = [(np.asarray(row["token_ids"], np.int32), _turns(row), _spans(row)) for row in rows]
        self._images = [[(i["start"], i["key"]) for i in row.get("images") or ()] for row in rows]
        self._answered: set[tuple[int, int]] = set()

    async def generate(self, request: GenerateRequest) -> Generated:
        """Return what followed, at most as much as is asked for. Raises `InputError` for an unknown context."""
        context = request.token_ids
        found = list(
            self._following(context, [(image.start, image.key) for image in request.extras.get(IMAGES, ())])
        )
        if not found:
            self.difference = self.difference or self._leaves_at(context)
            raise InputError("the recorded episode has no call with this context")
        # The same may have been asked several times, with different answers.
        row, number = next((turn for turn in found if turn not in self._answered), found[0])
        _, turns, spans = self._rows[row]
        start, end = spans[number]
        if len(context) == start:
            self._answered.add((row, number))
        turn, given = turns[number], len(context) - start
        upto = min(end - start, given + request.max_tokens)
        ids = turn.token_ids[given:upto]
        stopped = upto == end - start and int(ids[-1]) in request.stop_token_ids
        return Generated(
            ids, turn.logprobs[given:upto], turn.versions[given:upto], "stop" if stopped else "length"
        )

    async def context_limit(self) -> int:
        return self.max_tokens

    def hold(self, session: str, num_tokens: int, ttl_s: float) -> None:
        """Nothing is cached."""

    def _following(self, context: np.ndarray, images: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int]]:
        """Yield row and number of each turn that begins or goes on after a context with these images."""
        length = len(context)
        for row, (ids, _, spans) in enumerate(self._rows):
            if [image for image in self._images[row] if image[0] < length] != images:
                continue
            for number, (start, end) in enumerate(spans):
                if start <= length < end and np.array_equal(ids[:length], context):
                    yield row, number

    def _leaves_at(self, context: np.ndarray) -> Difference:
        """Say where a context leaves the recorded one that it follows longest."""
        recorded = max((ids for ids, _, _ in self._rows), key=lambda ids: common_prefix(ids, context))
        place = common_prefix(recorded, context)
        if place == len(context):
            return Difference(
                f"token {place} of a call's context",
                "no call, or other images",
                "a call that is answered here",
            )
        return Difference(f"token {place} of a call's context", shown(recorded, place), shown(context, place))


def common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of tokens with which both begin."""
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def shown(ids: np.ndarray, place: int) -> str:
    """Return the first tokens from a place on, as a text."""
    return str(ids[place : place + SHOWN_TOKENS].tolist())


def _spans(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    return list(zip(row["turn_start"], row["turn_end"], strict=True))


def _turns(row: Mapping[str, Any]) -> list[Generated]:
    ids, versions = np.asarray(row["token_ids"], np.int32), np.asarray(row["versions"], np.int32)
    logprobs = np.asarray(row["behavior_logprobs"], np.float32)
    spans = _spans(row)
    cut = row["status"] == Status.TRUNCATED and row["error"] == "max_tokens_per_turn"
    return [
        Generated(
            ids[start:end],
            logprobs[start:end],
            versions[start:end],
            "length" if cut and number == len(spans) - 1 else "stop",
        )
        for number, (start, end) in enumerate(spans)
    ]
