"""The tree of a group's episodes: which turns its trajectories share, where they fork, and which agent called which.

A trajectory is a row of nodes, one for each turn that it owns. A row hangs from a turn of another one: a branch from
the last turn that it was given (`rollout.player.GivenPrefix`, `gateway.export`), the conversation of a further agent
from the turn that called it. Rows that hang from nothing are episodes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from asyncrl.env.protocol import agent_of

COLUMNS = (
    "episode_index",
    "reward",
    "status",
    "info",
    "token_ids",
    "loss_mask",
    "turn_start",
    "turn_end",
    "turn_reward",
    "messages",
)
"""The columns of the Parquet files that a tree is made of."""
TEXT_CHARS = 80


@dataclass(frozen=True, slots=True)
class Node:
    """One turn."""

    turn: int
    """The turn of its trajectory, counted from 0."""
    depth: int
    """Turns before it on the way from the tree's beginning."""
    tokens: int
    reward: float
    text: str
    """The beginning of what the policy wrote."""
    given: bool
    """Whether the policy was given the turn, as a hint, and did not sample it."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The turn that a row hangs from."""

    episode_index: int
    turn: int
    kind: str
    """"branch", or "call" of another agent."""


@dataclass(slots=True)
class Row:
    """One trajectory."""

    episode_index: int
    rollout: int
    """The episode that it is of."""
    branch: int
    """The branch of the episode's conversations behind a gateway."""
    agent: str
    reward: float
    status: str
    parent: Parent | None = None
    nodes: list[Node] = field(default_factory=list)


class _Place(NamedTuple):
    """A turn on the way from the tree's beginning."""

    row: int
    turn: int
    end: int
    """The position in the tokens of the way at which it ends."""
    depth: int


@dataclass(slots=True)
class _Way:
    """The turns from the tree's beginning to the end of a trajectory, as far as its tokens hold them."""

    ids: np.ndarray
    turns: list[_Place]


def tree_of(trajectories: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a group's tree, each after the one that it hangs from.

    trajectories: in the order of `episode_index`, with the columns `COLUMNS`; `info` as an object.
    """
    rows: list[Row] = []
    ways: list[_Way] = []
    for number, found in enumerate(_callers_first(trajectories)):
        row = _row(found)
        way = _Way(np.asarray(found["token_ids"], np.int64), [])
        depth = 0
        if (caller := _caller(row, found["info"], rows)) is not None:
            row.parent = Parent(caller[0].episode_index, caller[1].turn, "call")
            depth = caller[1].depth + 1
        elif way_above := _fork(row, found, rows, ways):
            last = way_above[-1]
            row.parent = Parent(rows[last.row].episode_index, last.turn, "branch")
            way.turns, depth = way_above, last.depth + 1
        covered = way.turns[-1].end if way.turns else 0
        texts = _texts(found)
        mask = np.asarray(found["loss_mask"], bool)
        for turn, (start, end) in enumerate(zip(found["turn_start"], found["turn_end"], strict=True)):
            if end <= covered:
                continue
            row.nodes.append(
                Node(
                    turn=turn,
                    depth=depth,
                    tokens=end - start,
                    reward=found["turn_reward"][turn],
                    text=texts.get(turn, ""),
                    given=not mask[start:end].any(),
                )
            )
            way.turns.append(_Place(number, turn, end, depth))
            depth += 1
        rows.append(row)
        ways.append(way)
    return [asdict(row) for row in _in_order(rows)]


def _callers_first(trajectories: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the trajectories with each behind the one whose turn called its agent: an agent behind a gateway ends
    after those that it started."""
    waiting = list(trajectories)
    placed: set[tuple[Any, Any]] = set()
    ordered: list[Mapping[str, Any]] = []
    while waiting:
        ready = (i for i, t in enumerate(waiting) if _calling(t["info"]) in placed | {None})
        # Where the caller is not among them, what it called begins a tree.
        found = waiting.pop(next(ready, 0))
        placed.add((found["info"].get("rollout"), found["info"].get("branch")))
        ordered.append(found)
    return ordered


def _calling(info: Mapping[str, Any]) -> tuple[Any, Any] | None:
    return (info.get("rollout"), info["call_branch"]) if "call_branch" in info else None


def _row(found: Mapping[str, Any]) -> Row:
    info, index = found["info"], found["episode_index"]
    return Row(
        episode_index=index,
        rollout=int(info.get("rollout", index)),
        branch=int(info.get("branch", 0)),
        agent=agent_of(info),
        reward=found["reward"],
        status=found["status"],
    )


def _caller(row: Row, info: Mapping[str, Any], rows: Sequence[Row]) -> tuple[Row, Node] | None:
    """Return the turn that called this agent, where that was recorded."""
    for above in rows:
        if above.rollout != row.rollout or above.branch != info.get("call_branch", above.branch):
            continue
        if above.agent == info.get("called_by"):
            for node in above.nodes:
                if node.turn == info["call_turn"]:
                    return above, node
    return None


def _fork(row: Row, found: Mapping[str, Any], rows: Sequence[Row], ways: Sequence[_Way]) -> list[_Place]:
    """Return the turns that this trajectory was given and another one has; none for an episode of its own.

    Equal tokens that it sampled itself are no fork: it only began like its sibling.
    """
    ids = np.asarray(found["token_ids"], np.int64)
    mask = np.asarray(found["loss_mask"], bool)
    given = int(mask.argmax()) if mask.any() else len(mask)
    longest: list[_Place] = []
    for above, way in zip(rows, ways, strict=True):
        if above.rollout != row.rollout and above.episode_index != found["info"].get("branch_of"):
            continue
        shared = min(given, _common(ids, way.ids))
        turns = [place for place in way.turns if place.end <= shared]
        if turns and (not longest or turns[-1].end > longest[-1].end):
            longest = turns
    return longest


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """Return how many leading items are equal."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length


def _texts(found: Mapping[str, Any]) -> dict[int, str]:
    """Return the beginning of each turn, by its number."""
    texts = {}
    for message in found["messages"] or ():
        if message["turn"] is not None:
            calls = [f"{call['name']}({call['arguments']})" for call in message["tool_calls"] or ()]
            whole = " ".join(" ".join([message["content"] or "", *calls]).split())
            texts[message["turn"]] = whole if len(whole) <= TEXT_CHARS else whole[: TEXT_CHARS - 1] + "…"
    return texts


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with each below the one that it hangs from; the one that leaves it last comes first, so that no
    line crosses a row."""
    below: dict[int | None, list[Row]] = {}
    for row in rows:
        below.setdefault(row.parent.episode_index if row.parent else None, []).append(row)

    ordered: list[Row] = []
    waiting = list(reversed(below.get(None, [])))
    while waiting:
        row = waiting.pop()
        ordered.append(row)
        # The last one on the list is the next row.
        waiting += sorted(below.get(row.episode_index, []), key=_leaves_late)
    return ordered


def _leaves_late(row: Row) -> tuple[int, int]:
    return (row.parent.turn if row.parent else 0), -row.episode_index
