"""A sub-agent that says nothing of its caller is recognised by the words that it was given."""

import numpy as np
import pytest

from asyncrl.extensions.agents.gateway.callers import caller_by_words
from asyncrl.extensions.agents.gateway.tree import Call, CallTree

ORDER = "find all papers on stale gradients"


def user(text):
    return {"role": "user", "content": text}


def said(**arguments):
    """An assistant's turn that calls `start`."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "start", "arguments": arguments}}],
    }


def add(tree, *messages, parent=None, tool_ids=("call-1",)):
    nothing = np.empty(0, np.int32)
    call = Call(f"call-{len(tree.calls)}", parent, nothing, None, b"", tool_ids=tool_ids, messages=messages)
    return tree.add(call)


@pytest.fixture
def tree():
    return CallTree()


@pytest.mark.parametrize(
    "arguments", [{"task": ORDER}, {"tasks": [{"prompt": f" {ORDER}\n"}]}, {"n": 3, "task": ORDER}]
)
def test_what_a_waiting_tool_call_passed_on_shows_its_turn(tree, arguments):
    add(tree, user("hello"), said(task="something quite different, as long"))
    call = add(tree, user("research"), said(**arguments))
    assert caller_by_words(tree, [user("You search."), user(f"Your task: {ORDER}.")]) is call
    parts = {"role": "user", "content": [{"type": "text", "text": ORDER}]}
    assert caller_by_words(tree, [parts]) is call


def test_a_call_that_was_answered_has_started_nothing_since(tree):
    first = add(tree, user("research"), said(task=ORDER))
    add(tree, {"role": "tool", "content": "done"}, said(task="and now something else entirely"), parent=first)
    assert caller_by_words(tree, [user(ORDER)]) is None


def test_words_that_prove_nothing_leave_a_root(tree):
    add(tree, user("research"), said(path="/tmp/notes.txt"))
    # Too short, said before the turn by somebody else, and a history that an agent has rewritten.
    assert caller_by_words(tree, [user("read /tmp/notes.txt")]) is None
    add(tree, user(f"please {ORDER} for me"), said(task=ORDER))
    assert caller_by_words(tree, [user(ORDER)]) is None
    add(tree, user("go"), said(task="count the words in every file"))
    rewritten = [
        user("go"),
        {"role": "assistant", "content": "I will"},
        user("count the words in every file"),
    ]
    assert caller_by_words(tree, rewritten) is None


def test_two_turns_that_fit_name_none(tree):
    add(tree, user("a"), said(task=ORDER))
    add(tree, user("b"), said(task=ORDER))
    assert caller_by_words(tree, [user(ORDER)]) is None


def test_a_turn_without_calls_starts_nothing(tree):
    add(tree, user("a"), {"role": "assistant", "content": ORDER}, tool_ids=())
    assert caller_by_words(tree, [user(ORDER)]) is None
