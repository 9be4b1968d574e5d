"""The script that a harness is checked against: what it says to which conversation."""

import asyncio
import json

import numpy as np
import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.generation import GenerateRequest
from asyncrl.harness.scripted_policy import FILLER, REPAIR, Faults, ScriptedPolicy

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


def test_one_call_fails_and_the_same_call_again_is_answered():
    policy = ScriptedPolicy(Letters(), 10_000, Faults(fails=1))
    with pytest.raises(InfrastructureError, match="scripted"):
        ask(policy, conversation("a - b"))
    assert said(policy, conversation("a - b")) == REPAIR
