"""A group whose episodes make a tree, with tokens worked out by hand."""

import dataclasses
import json

import numpy as np

from asyncrl.data.transcript import encode_transcript
from asyncrl.types import NOT_SAMPLED, Group, Status, Task, Trajectory, Turn

OPENING = [1, 2, 3, 4]


def episode(index, turns, given=0, reward=0.0, opening=OPENING, **info):
    """Return an episode of these turns, with two tokens of context after each; the first `given` are not sampled."""
    ids, mask, spans = list(opening), [False] * len(opening), []
    messages = [{"role": "user", "content": "Where to?"}]
    for number, turn in enumerate(turns):
        spans.append((len(ids), len(ids) + len(turn)))
        ids += [*turn, 8, 9]
        mask += [number >= given] * len(turn) + [False, False]
        call = {"id": "c", "function": {"name": "go", "arguments": json.dumps({"by": turn})}}
        messages += [
            {"role": "assistant", "content": f"turn {number}", "tool_calls": [call]},
            {"role": "tool", "content": "gone"},
        ]
    rewards = [0.0] * (len(spans) - 1) + [reward]
    return Trajectory(
        task_id="tree",
        episode_index=index,
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask),
        behavior_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
        turns=tuple(Turn(*span, earned) for span, earned in zip(spans, rewards, strict=True)),
        reward=reward,
        status=Status.FINISHED,
        info={"rollout": index, **info},
        conversation=encode_transcript(messages, {2 * k + 1: k for k in range(len(turns))}),
    )


def tree_group():
    """Return a group: an episode, two branches of it, one that only began alike, and an agent that this one called."""
    a, b, c = [10, 11], [12, 13, 14], [15]
    called = {"agent": "helper", "agent_name": "helper/1", "called_by": "", "call_turn": 0}
    episodes = [
        episode(0, [a, b, c], reward=1.0),
        episode(1, [a, b, [20], [21]], given=2, branch_of=0, branch_turn=2),
        episode(2, [a, [30]], given=1, reward=-1.0, branch_of=0, branch_turn=1),
        episode(3, [a, b], reward=0.5),
        episode(4, [[40], [41]], opening=[5, 5], rollout=3, **called),
    ]  # fmt: skip
    return Group("g-tree", Task("tree", "gridworld", 7, "train", {"level": 2}), 0, tuple(episodes), "w")


def gateway_group():
    """Return a group of one episode with three leaves, as the gateway exports it: shared calls are turns of the first
    leaf only."""
    whole = [
        episode(0, [[10], [11], [12]], rollout=0, branch=0),
        episode(1, [[10], [11], [13]], given=2, rollout=0, branch=1),
        episode(2, [[10], [14]], given=1, rollout=0, branch=2),
    ]
    owned = [
        dataclasses.replace(t, turns=tuple(turn for turn in t.turns if t.loss_mask[turn.start]))
        for t in whole
    ]
    return Group("g-agent", Task("agent", "agent"), 0, tuple(owned), "w")


def sub_agent_group():
    """Return a group of one episode behind the gateway, whose agent ends after the one that it started in its second
    turn, and after the one that this one started."""
    searcher = {"agent": "searcher", "branch": 0, "called_by": "", "call_branch": 2, "call_turn": 1}
    reader = {"agent": "reader", "branch": 1, "called_by": "searcher", "call_branch": 0, "call_turn": 0}
    episodes = (
        episode(0, [[20], [21]], opening=[5, 5], rollout=0, **searcher),
        episode(1, [[30]], opening=[6], rollout=0, **reader),
        episode(2, [[10], [11], [12]], rollout=0, branch=2),
    )
    return Group("g-sub-agents", Task("agent", "agent"), 0, episodes, "w")
