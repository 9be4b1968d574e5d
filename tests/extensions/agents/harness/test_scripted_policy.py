"""The script that a harness is checked against: what it says to which conversation."""

import asyncio
import json

import numpy as np
import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.agents.harness.scripted_policy import (
    EDIT,
    FILLER,
    LISTING,
    REPAIR,
    Faults,
    ScriptedPolicy,
)
from asyncrl.generation import GenerateRequest
from asyncrl.types import Turn
from tests.data.test_codec import make_trajectory

TOOL = {
    "name": "bash",
    "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command", "why"]},
}


class Letters:
    """A token a character."""

    eos_token_id = 0

    def encode(self, text, add_special_tokens=False):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


def conversation(*results, tools=(TOOL,)):
    listed = "".join(json.dumps(tool) + "\n" for tool in tools)
    text = f"<|im_start|>tools\n{listed}<|im_end|>\n" if tools else ""
    text += "".join(f"<|im_start|>tool\n{result}<|im_end|>\n" for result in results)
    return np.array([ord(c) for c in f"{text}<|im_start|>assistant\n"], np.int32)


def ask(policy, ids, max_tokens=4096):
    return asyncio.run(policy.generate(GenerateRequest("r", ids, max_tokens)))


def said(policy, ids):
    text = Letters().decode(ask(policy, ids).token_ids[:-1].tolist())
    if not text.startswith("<tool_call>"):
        return text
    return json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"]["command"]


def test_it_looks_repairs_and_ends():
    policy = ScriptedPolicy(Letters(), 10_000)
    assert said(policy, conversation()) == "cat calc.py"
    assert said(policy, conversation("a - b")) == REPAIR
    assert said(policy, conversation("a - b", "repaired")) == "The test passes now."
    assert said(policy, conversation("a - b", '{"output": "repaired\\n"}')) == "The test passes now."
    assert said(policy, conversation(tools=())) == "Repair of calc.py"


def test_a_turn_in_pieces_is_one_turn():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fills=2))
    start = conversation("a - b")
    first = ask(policy, start, 10)
    assert first.finish_reason == "length"
    rest = ask(policy, np.concatenate([start, first.token_ids]))
    whole = Letters().decode(np.concatenate([first.token_ids, rest.token_ids])[:-1].tolist())
    assert FILLER in whole and rest.finish_reason == "stop"


def test_it_fills_so_often_in_an_episode_whatever_the_agent_forgets():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fills=2))
    contexts = [conversation("a - b"), conversation("a - b", "1 2"), conversation("a short summary")]
    assert [said(policy, ids) for ids in contexts] == [FILLER, FILLER, REPAIR]


def plain(words):
    """A conversation of an agent that calls no tools."""
    return np.array([ord(c) for c in f"{words}<|im_start|>assistant\n"], np.int32)


def test_agents_without_tools_are_answered_with_edits_or_code():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fills=1))
    assert said(policy, plain("Answer with SEARCH/REPLACE blocks.")) == EDIT
    assert said(policy, plain("Answer with a file listing.")) == LISTING
    steps = [said(policy, plain(f"Call final_answer. {then}")) for then in ("", "1 2", REPAIR)]
    for command, step in zip((FILLER, REPAIR, "final_answer"), steps, strict=True):
        assert command in step


def test_an_agent_whose_answers_are_typed_gets_them_as_json():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fills=1))
    prompts = ["an array of keystrokes", "keystrokes; 1 2", f"keystrokes; {REPAIR}\nrepaired\n"]
    answers = [json.loads(said(policy, plain(words))) for words in prompts]
    assert [[one["keystrokes"] for one in answer["commands"]] for answer in answers] == [
        [f"{FILLER}\n"], [f"{REPAIR}\n"], [],
    ]  # fmt: skip
    assert [answer["task_complete"] for answer in answers] == [False, False, True]


@pytest.mark.parametrize("words", ["Answer with a file listing.", "Call final_answer.", "keystrokes"])
def test_agents_without_tools_meet_failures_and_slow_turns_too(words):
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fails=1, slow_s=0.01))
    with pytest.raises(InfrastructureError, match="scripted"):
        ask(policy, plain(words))
    assert policy.happened == {"fails"}
    ask(policy, plain(words))
    assert policy.happened == {"fails", "slow_s"}


def test_an_agent_that_shortens_its_context_to_the_same_one_again_does_not_fill_it_for_ever():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fills=2))
    short, longer = conversation("a short summary"), conversation("a short summary", "1 2")
    turns = [(context, said(policy, context)) for context in (short, longer, short)]
    assert [turn for _, turn in turns] == [FILLER, FILLER, REPAIR]
    # Asked for again at once, a turn stays what it was.
    assert said(policy, short) == REPAIR


def test_one_call_fails_and_the_same_call_again_is_answered():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fails=1))
    with pytest.raises(InfrastructureError, match="scripted"):
        ask(policy, conversation("a - b"))
    assert said(policy, conversation("a - b")) == REPAIR


def test_a_turn_is_as_it_was_said_also_where_a_stop_string_ended_it():
    policy = ScriptedPolicy(Letters(), 10_000)
    context = plain("Call final_answer.")
    told = ask(policy, context).token_ids

    def count(turn):
        ids = np.concatenate([context, turn])
        at = Turn(len(context), len(ids))
        return policy.wrong_turns((make_trajectory(token_ids=ids, turns=(at,)),))

    assert count(told) == count(told[:5]) == (1, 0)
    assert count(told + 1) == (1, 1)
    assert count(np.append(told, 65)) == (1, 1)
    # Also where the same context was answered otherwise before.
    policy.said[context.tobytes()].insert(0, told[::-1])
    assert count(told) == (1, 0)
