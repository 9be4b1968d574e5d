"""What a worker may say of a trajectory: every key has one form, and nothing else is taken."""

import dataclasses
import re

import pytest

from asyncrl.data.codec import decode_group, encode_group, group_from_map, group_to_map
from asyncrl.data.trajectory_info import info_token_ids
from asyncrl.errors import InputError
from tests.train.factories import group

GOOD = {
    "agent": "helper",
    "agent_name": "helper/1",
    "answer_ids": [3, 4],
    "attempts": 2,
    "branch": 0,
    "branch_of": 0,
    "branch_turn": 1,
    "branches": 1,
    "cached_tokens": 12,
    "call_branch": 0,
    "call_turn": 1,
    "called_by": "",
    "extracted": "18",
    "greedy_reward": 0.25,
    "hint_turns": 1,
    "housekeeping": True,
    "history_forks": 0,
    "history_matches": True,
    "of_task": "t0",
    "opponent": 3,
    "rollout": 1,
    "examples": 2,
    "turn_order": [[0, 0], [1, 3]],
}


def test_the_tokens_that_an_info_holds_are_named_by_their_place():
    assert info_token_ids({"agent": "a", "attempts": 2}) == {}
    found = info_token_ids({"answer_ids": [3, 4]})
    assert {place: ids.tolist() for place, ids in found.items()} == {"info.answer_ids": [3, 4]}


def sent(info):
    """Return a group whose second trajectory has this `info`, as it is sent."""
    raw = group_to_map(group("t", [0.0, 1.0]))
    raw["trajectories"][1]["info"] = info
    return raw


@pytest.mark.parametrize("change", [{}, {"opponent": "main/3"}, {"extracted": "x" * 1000}])
def test_what_workers_say_comes_back(change):
    assert group_from_map(sent(GOOD | change)).trajectories[1].info == GOOD | change


WRONG = ["x", -1, 2**60, 1.5, float("nan"), float("inf"), None, [], {}, [[]], {"x": 1}, b"x", True]


def refused(key, value):
    """Return why a group with this value is refused, "" where it is taken."""
    try:
        group_from_map(sent({key: value}))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_value_of_another_form_is_refused_by_its_key(key):
    """Whatever of these is not refused has the form that the key has."""
    more = [[1, "x"], [-1], [2**40], "x" * 1001]
    refusals = [(wrong, refused(key, wrong)) for wrong in [*WRONG, *more]]
    taken = [wrong for wrong, why in refusals if not why]
    assert all(re.search(rf"trajectories\[1\]\.info\.{key}\b", why) for _, why in refusals if why)
    good = GOOD[key]
    allowed = (int, float) if key == "greedy_reward" else (int, str) if key == "opponent" else type(good)
    assert all(isinstance(one, allowed) for one in taken), taken
    assert all(isinstance(one, bool) == isinstance(good, bool) for one in taken), taken
    if isinstance(good, list | dict):
        assert taken in ([], [{}]), "counts of nothing are counts"


@pytest.mark.parametrize("key", ["pooled_from", "swarm", "peer", "tags", ""])
def test_a_key_that_no_worker_writes_is_refused(key):
    """`pooled_from` and `peer` say where a group is from, and spare it the check of its log-probabilities."""
    with pytest.raises(InputError, match=r"trajectories\[1\]\.info has the unknown key"):
        group_from_map(sent({key: "t/0"}))


def test_no_episode_branches_off_itself_or_a_later_one():
    for parent in (1, 2):
        with pytest.raises(InputError, match=r"info\.branch_of must be below 1"):
            group_from_map(sent({"branch_of": parent}))


def test_where_a_trajectory_is_from_does_not_travel():
    whole = group("t", [0.0, 1.0])
    named = tuple(dataclasses.replace(t, pooled_from="t/0", peer="other") for t in whole.trajectories)
    back = decode_group(encode_group(dataclasses.replace(whole, trajectories=named)))
    assert [(t.pooled_from, t.peer) for t in back.trajectories] == [("", "")] * 2
