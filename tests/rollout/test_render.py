"""Rendering is append-only and agrees with the chat template."""

import numpy as np
import pytest

from asyncrl.errors import ConfigError
from asyncrl.rollout.render import ChatRenderer, sampling_seed

OPENING = [{"role": "user", "content": "goal north east"}]
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"properties": {"a": {}, "b": {}}}}}]


def conversation(renderer, turns, tools=None):
    ids = [renderer.opening(OPENING, tools)]
    messages = list(OPENING)
    for message, answer in turns:
        ids += [renderer.assistant(message, tools), renderer.observation([answer], tools)]
        messages += [message, answer]
    return np.concatenate(ids), messages


def test_appending_turns_gives_the_tokens_of_a_fresh_rendering(renderer):
    turns = [
        ({"role": "assistant", "content": w}, {"role": "user", "content": "goal east"})
        for w in ("north", "west")
    ]
    ids, messages = conversation(renderer, turns)
    fresh = renderer.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert renderer.tokenizer.decode(ids.tolist()) == fresh
    assert ids.tolist() == renderer.tokenizer.encode(fresh, add_special_tokens=False)


def test_tool_calls_and_results_are_appended_like_any_turn(renderer):
    call = {"type": "function", "function": {"name": "calc", "arguments": {"a": 6, "b": 8}}}
    turn = ({"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "48"})
    ids, messages = conversation(renderer, [turn], TOOLS)
    fresh = renderer.tokenizer.apply_chat_template(
        messages, tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert renderer.tokenizer.decode(ids.tolist()) == fresh


def test_a_sampled_turn_decodes_without_its_stop_token(renderer):
    ids = renderer.assistant({"role": "assistant", "content": "north"})
    assert ids[-1] in renderer.stop_token_ids
    assert renderer.text(ids) == "north"
    assert renderer.text(ids[:-1]) == "north"


def test_history_that_the_template_would_rewrite_is_noticed(renderer):
    ids, messages = conversation(
        renderer, [({"role": "assistant", "content": "north"}, {"role": "user", "content": "x"})]
    )
    closed = ids[: len(ids) - len(renderer.observation([{"role": "user", "content": "x"}]))]
    assert renderer.matches_history(closed, messages[:2])
    assert not renderer.matches_history(closed, [messages[0], {"role": "assistant", "content": "south"}])


def test_a_template_that_does_not_end_turns_with_the_eos_token_is_refused(renderer):
    class Endless:
        eos_token_id, eos_token = 0, "<eos>"

        def apply_chat_template(self, conversation, **options):
            return "".join(m["content"] for m in conversation)

    with pytest.raises(ConfigError, match="must end assistant turns"):
        ChatRenderer(Endless())


def test_seeds_depend_on_every_part_and_nothing_else():
    base = sampling_seed(1, "t", 2, 3)
    assert base == sampling_seed(1, "t", 2, 3)
    assert (
        len(
            {
                base,
                sampling_seed(2, "t", 2, 3),
                sampling_seed(1, "u", 2, 3),
                sampling_seed(1, "t", 3, 3),
                sampling_seed(1, "t", 2, 4),
            }
        )
        == 5
    )
    assert 0 <= base < 2**56
