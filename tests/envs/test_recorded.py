"""Recorded episodes: what follows a right turn, a wrong one, a patch, and the last."""

import asyncio
import json
import random
from itertools import islice

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import play
from asyncrl.envs.recorded.env import Recorded
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task

DATA = {
    "opening": [{"role": "user", "content": "home"}],
    "turns": [
        {"action": "open settings", "messages": [{"role": "user", "content": "settings"}]},
        {"action": "tap wifi", "accept": ["tap network"], "messages": [{"role": "user", "content": "wifi"}]},
        {"action": "on"},
    ],
}


def opened(patches=0, split="train", data=DATA, **config):
    env = Recorded(Task("t", "recorded", 0, split=split, data=data), patches=patches, **config)
    messages = asyncio.run(env.reset())
    return env, messages


def steps(env, *texts):
    return [env.step(Action(text)) for text in texts]


def test_right_turns_earn_their_share_and_go_on_in_the_recording():
    env, messages = opened()
    assert (messages, env.max_turns) == (DATA["opening"], 3)
    first, second, last = steps(env, " open settings\n", "tap network", "on")
    assert [step.reward for step in (first, second, last)] == [1 / 3] * 3
    assert [m["content"] for m in first.messages + second.messages] == ["settings", "wifi"]
    assert (first.done, last.done, last.success, last.matches) == (False, True, True, True)


def test_without_a_patch_the_first_wrong_turn_ends_the_episode():
    env, _ = opened()
    _, wrong = steps(env, "open settings", "tap bluetooth")
    assert (wrong.reward, wrong.done, wrong.success, wrong.matches) == (0.0, True, False, False)


def test_a_patch_says_what_the_expert_did_and_goes_on_there():
    env, _ = opened(patches=1)
    wrong, right, last = steps(env, "open mail", "tap wifi", "off")
    assert (wrong.done, wrong.matches, wrong.components) == (False, False, {"patched": 1.0})
    assert wrong.messages == [{"role": "user", "content": "Not that. The expert: open settings\nsettings"}]
    assert (right.reward, right.messages[0]["content"]) == (1 / 3, "wifi")
    assert (last.done, last.success) == (True, False)


@pytest.mark.parametrize(
    ("patches", "split", "turns"), [(1, "train", 2), (2, "train", 3), (-1, "train", 3), (-1, "heldout", 1)]
)
def test_an_episode_ends_when_no_patch_is_left_and_held_out_ones_have_none(patches, split, turns):
    env, _ = opened(patches, split)
    played = 0
    while True:
        played += 1
        if env.step(Action("wrong")).done:
            break
    assert played == turns


def test_calls_match_by_name_and_arguments_and_are_answered_under_their_own_ids():
    call = {"id": "recorded", "type": "function", "function": {"name": "calc", "arguments": {"a": 2}}}
    data = {
        "opening": [{"role": "user", "content": "2"}],
        "turns": [
            {
                "action": {"role": "assistant", "content": "", "tool_calls": [call]},
                "messages": [{"role": "tool", "tool_call_id": "recorded", "content": "4"}],
            },
            {"action": "4"},
        ],
    }
    right = Action("", (ToolCall("own", "calc", {"a": 2}),))
    wrong = Action("", (ToolCall("own", "calc", {"a": 3}),))
    (answer,) = opened(1, data=data)[0].step(right).messages
    assert answer == {"role": "tool", "tool_call_id": "own", "content": "4"}
    answer, patch = opened(1, data=data)[0].step(wrong).messages
    assert answer == {"role": "tool", "tool_call_id": "own", "content": "not carried out"}
    assert patch["content"] == "Not that. The expert: calc {'a': 2}\n4"


def test_the_scripted_expert_of_another_environment_is_recorded():
    config = {"of": "gridworld", "config": {"size": 4}}
    for task in islice(Recorded.tasks("train", "recorded", **config), 5):
        assert task.env == "recorded"
        assert asyncio.run(play(task, config, True, random.Random(0))).reward == pytest.approx(1.0)
    assert [finding for finding in check_env("recorded", config, num_tasks=4) if not finding.ok] == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "opening: must be"),
        ({"opening": DATA["opening"]}, "turns: must be a list"),
        ({"opening": DATA["opening"], "turns": [{}]}, r"turns\[0\]: must be an object with an action"),
        ({"opening": DATA["opening"], "turns": [{"action": 3}]}, r"turns\[0\].action: must be text or"),
        ({"opening": DATA["opening"], "turns": [{"action": "x", "messages": "y"}]}, r"turns\[0\].messages"),
    ],
)
def test_a_recording_that_cannot_be_played_says_why(data, message):
    with pytest.raises(ValueError, match=message):
        Recorded(Task("t", "recorded", 0, data=data))


def test_held_out_recordings_have_a_file_of_their_own(tmp_path):
    path = tmp_path / "heldout.jsonl"
    path.write_text(json.dumps({"id": "a", "data": DATA}) + "\n")
    (task,) = Recorded.tasks("heldout", "recorded", heldout=str(path), patches=-1)
    assert (task.id, task.split, task.data) == ("a", "heldout", DATA)
    for split in ("train", "heldout"):
        with pytest.raises(ConfigError, match="recorded needs `of`"):
            next(Recorded.tasks(split, "recorded"))


def test_fewer_than_no_patches_are_refused():
    with pytest.raises(ValueError, match="patches: must be at least -1, got -2"):
        opened(-2)
