"""The calls of one episode as a tree: a call that continues a recorded one shares its tokens, exactly.

A node is one sampled turn. Its context is the tokens after its parent's turn; a root's is the whole prompt.
Sub-agents and new conversations are further roots, parallel branches are siblings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from asyncrl.generation import Generated
from asyncrl.images import moved
from asyncrl.types import Message, PlacedImage


@dataclass(slots=True, eq=False)
class Call:
    """One sampled turn."""

    id: str
    parent: Call | None
    context: np.ndarray
    """[N] int32, tokens between the parent's turn and this one; they were not sampled."""
    generated: Generated
    read_digest: bytes
    """Digest of the whole context the engine read, to prove at export that it is the context trained on."""
    tool_ids: tuple[str, ...] = ()
    agent: str = ""
    """Name of the sub-agent that asked, for multi-agent advantages."""
    caller: Call | None = None
    """The call whose turn started this conversation: of roots alone, where it is known."""
    text_end: str | None = None
    """Prompt and completion of a plain text call."""
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward that were sent for this call."""
    images: tuple[PlacedImage, ...] = ()
    """What some tokens of `context` stand for, counted from its first."""
    messages: tuple[Message, ...] = ()
    """What `context` says, and last what was sampled."""
    num_messages: int = 0
    """Messages of the conversation up to this one, as its client counts them; a turn that is continued is one."""
    cut: str = ""
    """The limit of the run that cut this turn."""
    thread: str = ""
    """The program's own id of the conversation."""
    tools: bool = False
    """Whether tools were offered with it."""
    asked_after: int = 0
    """How many calls of the episode had been answered when it was asked."""
    index: int = 0
    """Position among the calls of the episode, in the order of their answers."""
    root: int = 0
    """Number of this conversation within the episode."""
    num_children: int = 0


class CallTree:
    """Recorded calls and the index that finds them again."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_key: dict[bytes, list[Call]] = {}
        self._by_id: dict[str, Call] = {}

    def add(self, call: Call, keys: Sequence[bytes] = ()) -> Call:
        """Record a call that is found again by any of `keys`. Sets its `index`, and the root of a child."""
        call.index = len(self.calls)
        if call.parent is not None:
            call.parent.num_children += 1
            call.root = call.parent.root
        self.calls.append(call)
        self._by_id[call.id] = call
        for key in dict.fromkeys(keys):
            self._by_key.setdefault(key, []).append(call)
        return call

    def by_id(self, call_id: str) -> Call | None:
        """The call with this id."""
        return self._by_id.get(call_id)

    def starter(self, given_id: str) -> Call | None:
        """The call with this id, or the one whose turn holds the tool call with this id."""
        return self.by_id(given_id) or next((c for c in self.calls if given_id in c.tool_ids), None)

    def latest_of(self, thread: str) -> Call | None:
        """The latest call of a conversation that calls tools and that nothing continues; None where there is none."""
        open_ones = (
            c for c in reversed(self.calls) if c.thread == thread and c.tool_ids and not c.num_children
        )
        return next(open_ones, None) if thread else None

    def find(self, key: bytes, tool_ids: tuple[str, ...] = ()) -> Call | None:
        """The call whose conversation, its own turn included, has this key.

        Turns that read the same may have been sampled as different tokens. Then ids of tool calls decide, then
        the call that has been continued least, then the newest: parallel branches each keep their own.
        """
        found = self._by_key.get(key)
        if not found:
            return None
        return min(found, key=lambda c: (c.tool_ids != tool_ids, c.num_children, -c.index))

    def leaves(self) -> list[Call]:
        """Calls that nothing continues, in order."""
        return [call for call in self.calls if not call.num_children]


def add_components(total: dict[str, float], more: dict[str, float]) -> None:
    """Add the named parts of a reward to those of others."""
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + value


def path(call: Call) -> list[Call]:
    """The calls from the root to `call`."""
    found = [call]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found[::-1]


def token_ids(call: Call | None) -> np.ndarray:
    """All tokens up to the end of `call`. [L] int32; empty for None."""
    if call is None:
        return np.empty(0, np.int32)
    return np.concatenate([part for c in path(call) for part in (c.context, c.generated.token_ids)])


def images(calls: Sequence[Call]) -> tuple[PlacedImage, ...]:
    """The images of a path, by their places among all its tokens; those of one key share their bytes."""
    found: list[PlacedImage] = []
    known: dict[str, bytes] = {}
    position = 0
    for call in calls:
        one_copy = [replace(image, data=known.setdefault(image.key, image.data)) for image in call.images]
        found += moved(one_copy, position)
        position += len(call.context) + len(call.generated.token_ids)
    return tuple(found)


def digest(ids: np.ndarray, seen: Sequence[PlacedImage] = ()) -> bytes:
    """Digest of token ids, and of the images that some of them stand for."""
    found = hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=16)
    for image in seen:
        found.update(f" {image.start} {image.end} {image.key}".encode())
    return found.digest()
