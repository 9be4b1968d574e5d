"""Conversations as keys, turns as trees, trees as trajectories: properties on generated cases."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import read_chat_history
from asyncrl.extensions.agents.gateway.export import Verdict, export_tree
from asyncrl.extensions.agents.gateway.pieces import cut_at_stop, settled
from asyncrl.extensions.agents.gateway.tree import Call, CallTree, digest, path, token_ids
from asyncrl.generation import Generated
from asyncrl.types import NOT_SAMPLED

CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": [2]}'}}


def generated(ids, version=0):
    count = len(ids)
    logprobs = -np.arange(1, count + 1, dtype=np.float32)
    return Generated(np.array(ids, np.int32), logprobs, np.full(count, version, np.int32), "stop")


@st.composite
def trees(draw):
    """A tree of up to 12 calls with tokens that are all different, so that each can be told from the others."""
    tree, next_id = CallTree(), 0
    for number in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from([None, *tree.calls]))
        sizes = draw(st.integers(0 if parent else 1, 4)), draw(st.integers(1, 4))
        context, sampled = (
            np.arange(next_id + s, next_id + s + n) for s, n in ((0, sizes[0]), (sizes[0], sizes[1]))
        )
        next_id += sum(sizes)
        read = np.concatenate([token_ids(parent), context]).astype(np.int32)
        reward = draw(st.integers(-3, 3))
        call = Call(f"c{number}", parent, context.astype(np.int32), generated(sampled, number), digest(read))
        call.reward = float(reward)
        tree.add(call)
    return tree


@given(trees(), st.integers(-2, 2))
def test_every_sampled_token_is_trained_exactly_once_in_its_own_context(tree, reward):
    trajectories, drifted = export_tree(tree, "t", 0, Verdict(reward=float(reward)), {})
    assert drifted == 0
    trained = [i for t in trajectories for i in t.token_ids[t.loss_mask].tolist()]
    assert sorted(trained) == sorted(i for call in tree.calls for i in call.generated.token_ids.tolist())
    for trajectory, leaf in zip(trajectories, tree.leaves(), strict=bool(tree.calls)):
        assert trajectory.token_ids.tolist() == token_ids(leaf).tolist()
        assert trajectory.reward == reward + sum(call.reward for call in path(leaf))
        assert ((trajectory.versions == NOT_SAMPLED) == ~trajectory.loss_mask).all()
        assert (trajectory.behavior_logprobs[~trajectory.loss_mask] == 0).all()
        for turn in trajectory.turns:
            assert trajectory.loss_mask[turn.start : turn.end].all()
    assert max(1, len(tree.leaves())) == len(trajectories)


def test_each_turn_of_an_agent_names_its_engine():
    tree = CallTree()
    first = Call("c0", None, np.array([1], np.int32), replace(generated([2]), engine="http://a:1"), b"")
    second = Call("c1", first, np.array([3], np.int32), replace(generated([4]), engine="http://b:1"), b"")
    branch = Call("c2", first, np.array([5], np.int32), replace(generated([6]), engine="http://a:1"), b"")
    for call in (first, second, branch):
        tree.add(call)
    found, _ = export_tree(tree, "t", 0, Verdict(), {})
    # What two branches share is a turn of one of them.
    assert {t.engines for t in found} == {("http://a:1", "http://b:1"), ("http://a:1",)}
    assert [len(t.turns) for t in found] == [2, 1]


def test_a_context_that_is_not_what_the_engine_read_is_counted_as_drift():
    tree = CallTree()
    root = tree.add(Call("a", None, np.array([1, 2], np.int32), generated([3, 4]), digest(np.array([1, 2]))))
    tree.add(
        Call("b", root, np.array([5], np.int32), generated([6, 7, 8]), digest(np.array([1, 2, 3, 9, 5])))
    )
    assert export_tree(tree, "t", 0, Verdict(), {})[1] == 3


def test_what_clients_change_in_passing_keeps_the_key_and_what_they_rewrite_does_not():
    def key(assistant, tools=None):
        user = {"role": "user", "content": "q"}
        return read_chat_history([user, {"role": "assistant", **assistant}], tools).key()

    spaced = {**CALL, "id": "other", "function": {"name": "f", "arguments": '{"b":[2],"a":1}'}}
    parsed = {**CALL, "function": {"name": "f", "arguments": {"a": 1, "b": [2]}}}
    same = [
        {"content": None, "tool_calls": [CALL]},
        {"content": "", "tool_calls": [spaced], "refusal": None},
        {"content": [{"type": "text", "text": "  "}], "tool_calls": [parsed]},
    ]
    assert len({key(message) for message in same}) == 1
    other = {**CALL, "function": {"name": "f", "arguments": '{"a": 2}'}}
    assert key({"content": "", "tool_calls": [other]}) != key(same[0])
    assert key({"content": "x"}) != key({"content": "y"})
    tool = {"type": "function", "function": {"name": "f"}}
    assert key({"content": "x"}, [tool]) != key({"content": "x"})


def test_equal_conversations_render_equally_whatever_ids_their_calls_have():
    def messages(wire_id):
        return [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": wire_id}]},
            {"role": "tool", "tool_call_id": wire_id, "content": "r"},
        ]

    one, two = (read_chat_history(messages(i), None) for i in ("call_1", "toolu_9"))
    assert one.messages == two.messages
    assert one.messages[2]["tool_call_id"] == one.messages[1]["tool_calls"][0]["id"]
    assert one.call_ids[1] == ("call_1",)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    json_values
    | st.lists(st.fixed_dictionaries({"role": st.text(max_size=9)}, optional={"content": json_values}))
)
def test_arbitrary_messages_are_read_or_refused_never_worse(raw):
    try:
        conversation = read_chat_history(raw, None)
    except InputError:
        return
    assert len(conversation.key()) == 16


@given(st.text("abST", max_size=20), st.lists(st.text("abST", min_size=1, max_size=3), max_size=3))
def test_a_turn_is_cut_after_the_first_token_that_completes_a_stop_string(text, stop):
    def decode(ids):
        return "".join(chr(i) for i in ids)

    cut, found = cut_at_stop(generated([ord(c) for c in text]), stop, decode)
    kept = decode(cut.token_ids)
    present = [s for s in stop if s in text]
    assert bool(found) == bool(present)
    assert text.startswith(kept)
    if present:
        assert min(text.find(s) + len(s) for s in present) == len(kept)
        assert kept.endswith(found) or any(kept.endswith(s) for s in present)
    else:
        assert kept == text


@given(st.text("abST", max_size=20), st.lists(st.text("abST", min_size=1, max_size=3), max_size=3), st.data())
def test_shown_text_is_never_taken_back(text, stop, data):
    """Whatever comes next, what is settled stays before the first stop string."""
    size = data.draw(st.integers(0, len(text)))
    ends = [text.find(s) for s in stop if s in text]
    before_stop = text[: min(ends)] if ends else text
    if not any(s in text[:size] for s in stop):
        assert settled(text[:size], stop) <= len(before_stop)


@pytest.mark.parametrize(("text", "shown"), [("ab\ufffd", 2), ("abS", 2), ("aSTb", 4)])
def test_half_a_character_and_half_a_stop_string_wait(text, shown):
    assert settled(text, ["STOP"]) == shown
