"""A tree to trajectories: one per leaf, every sampled token trained in exactly one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from asyncrl.data.transcript import encode_transcript
from asyncrl.extensions.agents.gateway.tree import Call, CallTree, add_components, digest, images, path
from asyncrl.generation import engines_of
from asyncrl.types import IMAGES, NOT_SAMPLED, TURN_ORDER, FailureClass, Message, Status, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an episode ended and what it earned."""

    status: Status = Status.FINISHED
    failure: FailureClass | None = None
    error: str = ""
    reward: float = 0.0
    """Reward of the whole episode; rewards and components of single calls come on top."""
    components: dict[str, float] = field(default_factory=dict)
    success: bool | None = None


MAX_TRAJECTORIES = 64
"""Trajectories of one episode: an agent that compacts its context again and again starts a conversation each time."""


def main_first(
    tree: CallTree, most: int = MAX_TRAJECTORIES, housekeeping_texts: Sequence[str] = ()
) -> tuple[list[Call], frozenset[int]]:
    """Return the leaves in the order of their trajectories, at most so many, and the roots that are housekeeping.

    First come the main agent's conversations, then those of sub-agents, last housekeeping: conversations without tools
    beside others with tools, that no agent's call has started, such as titles, probes and summaries, and those that
    open with one of `housekeeping_texts`. Of too many the first is kept and the latest of the others, housekeeping last
    of all.
    """
    with_tools = {call.root for call in tree.calls if call.tools}
    started = {call.root for call in tree.calls if call.agent or call.caller is not None}
    every = {call.root for call in tree.calls}
    said = {call.root for call in tree.calls if call.parent is None and _opens_with(call, housekeeping_texts)}
    housekeeping = frozenset(every - with_tools - started if with_tools else ()) | (
        said if said != every else set()
    )

    def place(leaf: Call) -> tuple[bool, bool, int]:
        return leaf.root in housekeeping, leaf.root in started, leaf.root

    leaves = sorted(tree.leaves(), key=place)
    if len(leaves) <= most:
        return leaves, housekeeping
    kept = [leaf for leaf in leaves if leaf.root not in housekeeping] or leaves
    return [kept[0], *kept[max(1, len(kept) - most + 1) :]], housekeeping


def _opens_with(call: Call, texts: Sequence[str]) -> bool:
    """Whether one of the texts stands in what a conversation began with, its first sampled turn left out."""
    opening = [str(message.get("content")) for message in call.messages[:-1]]
    return any(text in said for text in texts for said in opening)


def export_tree(
    tree: CallTree,
    task_id: str,
    episode_index: int,
    verdict: Verdict,
    timing: dict[str, float],
    most: int = MAX_TRAJECTORIES,
    housekeeping_texts: Sequence[str] = (),
) -> tuple[list[Trajectory], int]:
    """Return the trajectories of an episode and how many of their tokens differ from what the engine read.

    Their order and number are those of `main_first`. Housekeeping is recorded and not trained: none of its tokens is in
    the loss. A conversation whose last turn was cut by a limit of the run is truncated.

    A call shared by several branches is trained in the first; in the others its tokens are context. Each
    trajectory earns the episode's reward and the rewards of all calls on its path, shared ones included, and their
    components likewise.
    An episode without calls gives one empty trajectory, which carries its status.
    """
    leaves, housekeeping = main_first(tree, most, housekeeping_texts)
    owner: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        for call in path(leaf):
            owner.setdefault(call.index, number)
    trajectories, drifted = [], 0
    for number, leaf in enumerate(leaves):
        calls = path(leaf)
        chores = leaf.root in housekeeping
        owned = set() if chores else {call.index for call in calls if owner[call.index] == number}
        arrays, turns = _lay_out(calls, owned)
        drifted += _drift(calls, arrays["token_ids"])
        info: dict[str, Any] = {
            "branch": number,
            "branches": len(leaves),
            "cached_tokens": sum(c.generated.cached_tokens for c in calls if c.index in owned),
        }
        if order := [[call.asked_after, call.index] for call in calls if call.index in owned]:
            info[TURN_ORDER] = order
        if leaf.agent:
            info["agent"] = leaf.agent
        if chores:
            info["housekeeping"] = True
        if (caller := calls[0].caller) is not None and caller.index in owner:
            info |= _called_from(caller, leaves, owner)
        trajectories.append(
            _trajectory(
                task_id, episode_index, arrays, turns, calls, owned, _of_leaf(verdict, leaf), timing, info
            )
        )
    if not leaves:
        arrays, turns = _lay_out([], set())
        trajectories = [_trajectory(task_id, episode_index, arrays, turns, [], set(), verdict, timing, {})]
    return trajectories, drifted


def _of_leaf(verdict: Verdict, leaf: Call) -> Verdict:
    if not leaf.cut or verdict.status is not Status.FINISHED:
        return verdict
    return replace(verdict, status=Status.TRUNCATED, error=leaf.cut)


def _called_from(caller: Call, leaves: list[Call], owner: dict[int, int]) -> dict[str, Any]:
    """Return where a sub-agent was started: the agent and branch that own the calling turn, and its number there."""
    branch = owner[caller.index]
    turns = [call for call in path(leaves[branch]) if owner[call.index] == branch]
    return {"called_by": leaves[branch].agent, "call_branch": branch, "call_turn": turns.index(caller)}


def _lay_out(calls: list[Call], owned: set[int]) -> tuple[dict[str, np.ndarray], tuple[Turn, ...]]:
    """Arrays of one path; calls that are not `owned` are written as context."""
    ids: list[np.ndarray] = [np.empty(0, np.int32)]
    logprobs: list[np.ndarray] = [np.empty(0, np.float32)]
    versions: list[np.ndarray] = [np.empty(0, np.int32)]
    turns, position = [], 0
    for call in calls:
        for tokens, sampled in ((call.context, False), (call.generated.token_ids, call.index in owned)):
            count = len(tokens)
            ids.append(tokens)
            logprobs.append(call.generated.logprobs if sampled else np.zeros(count, np.float32))
            versions.append(call.generated.versions if sampled else np.full(count, NOT_SAMPLED, np.int32))
            if sampled:
                turns.append(Turn(position, position + count, call.reward))
            position += count
    arrays = {
        "token_ids": np.concatenate(ids).astype(np.int32, copy=False),
        "behavior_logprobs": np.concatenate(logprobs).astype(np.float32, copy=False),
        "versions": np.concatenate(versions).astype(np.int32, copy=False),
    }
    return arrays, tuple(turns)


def _transcript(calls: list[Call], owned: set[int]) -> str:
    """The messages of one path; those of the calls that are not `owned` are no turns of it."""
    messages: list[Message] = []
    turns: dict[int, int] = {}
    for call in calls:
        messages += call.messages
        if call.messages and call.index in owned:
            turns[len(messages) - 1] = len(turns)
    return encode_transcript(messages, turns)


def _drift(calls: list[Call], ids: np.ndarray) -> int:
    """Tokens of turns whose context in the trajectory is not the context the engine read."""
    drifted, position, seen = 0, 0, images(calls)
    for call in calls:
        position += len(call.context)
        count = len(call.generated.token_ids)
        if digest(ids[:position], [i for i in seen if i.end <= position]) != call.read_digest:
            drifted += count
        position += count
    return drifted


def _trajectory(
    task_id: str,
    episode_index: int,
    arrays: dict[str, np.ndarray],
    turns: tuple[Turn, ...],
    calls: list[Call],
    owned: set[int],
    verdict: Verdict,
    timing: dict[str, float],
    info: dict[str, Any],
) -> Trajectory:
    components = dict(verdict.components)
    for call in calls:
        add_components(components, call.components)
    return Trajectory(
        task_id=task_id,
        episode_index=episode_index,
        token_ids=arrays["token_ids"],
        loss_mask=arrays["versions"] != NOT_SAMPLED,
        behavior_logprobs=arrays["behavior_logprobs"],
        versions=arrays["versions"],
        turns=turns,
        reward=verdict.reward + sum(call.reward for call in calls),
        status=verdict.status,
        components=components,
        conversation=_transcript(calls, owned),
        extras={IMAGES: shown} if (shown := images(calls)) else {},
        success=verdict.success,
        failure=verdict.failure,
        error=verdict.error[:2000],
        timing=dict(timing),
        info=info,
        engines=engines_of([call.generated.engine for call in calls if call.index in owned]),
    )
