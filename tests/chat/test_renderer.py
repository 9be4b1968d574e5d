"""Rendering is append-only and agrees with the chat template."""

import copy
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from asyncrl.chat import renderer as rendering
from asyncrl.chat.renderer import ChatRenderer, load_renderer, sampling_seed
from asyncrl.errors import ConfigError, InputError

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


def test_a_conversation_that_comes_again_is_not_rendered_again_and_one_that_differs_is(renderer):
    class Counting:
        def __init__(self, tokenizer):
            self.tokenizer, self.rendered, self.decoded = tokenizer, 0, 0

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

        def apply_chat_template(self, *arguments, **options):
            self.rendered += 1
            return self.tokenizer.apply_chat_template(*arguments, **options)

        def decode(self, *arguments, **options):
            self.decoded += 1
            return self.tokenizer.decode(*arguments, **options)

    counting = Counting(renderer.tokenizer)
    own = ChatRenderer(counting)
    said = {"role": "assistant", "content": "north"}
    turn = own.assistant(said)
    ids = np.concatenate([own.opening(OPENING), turn])
    assert own.compare_history(ids, [*OPENING, said], 1, [turn]) == (True, 0)
    before = counting.rendered, counting.decoded
    assert own.compare_history(ids.copy(), [dict(m) for m in [*OPENING, said]], 1, [turn.copy()]) == (True, 0)
    assert (counting.rendered, counting.decoded) == before
    other = {"role": "assistant", "content": "south"}
    assert own.compare_history(ids, [*OPENING, other], 1, [turn]) == (False, 0)
    assert counting.rendered > before[0]
    # Equal bytes in arrays of another type are other ids.
    wide = np.array([turn[0]], np.int64)
    assert own.text(wide) == own.text(turn[:1])
    assert own.text(np.array([turn[0], 0], np.int32)) != own.text(wide)


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


def test_history_that_the_template_would_write_otherwise_is_noticed(renderer):
    turn = {"role": "assistant", "content": "north"}
    sampled = renderer.assistant(turn)
    ids = np.concatenate([renderer.opening(OPENING), sampled])
    assert renderer.compare_history(ids, [*OPENING, turn], 1, [sampled]) == (True, 0)
    other = [*OPENING, {"role": "assistant", "content": "south"}]
    # One turn: nothing was sent after it, so no prefix had to fork.
    assert renderer.compare_history(ids, other, 1, [sampled]) == (False, 0)


# As Qwen3's: reasoning is shown for the turns after the last user message, and dropped from those before it.
REASONING_TEMPLATE = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
THOUGHT = {"role": "assistant", "content": "<think>\nfar\n</think>\n\nnorth"}
PLAIN = {"role": "assistant", "content": "north"}
ASKED = {"role": "user", "content": "goal"}
RESULT = {"role": "tool", "content": "48"}


@pytest.fixture
def reasoning(renderer):
    tokenizer = copy.deepcopy(renderer.tokenizer)
    tokenizer.chat_template = REASONING_TEMPLATE
    return ChatRenderer(tokenizer)


def sampled_episode(renderer, messages, num_opening):
    """The tokens of an episode whose assistant turns were sampled, and those turns."""
    parts, turns, pending = [renderer.opening(messages[:num_opening])], [], []
    for message in messages[num_opening:]:
        if message["role"] != "assistant":
            pending.append(message)
            continue
        if pending:
            parts.append(renderer.observation(pending))
            pending = []
        ids = renderer.tokenizer.encode(message["content"] + "<|im_end|>", add_special_tokens=False)
        turns.append(np.asarray(ids, np.int32))
        parts.append(turns[-1])
    return np.concatenate(parts), turns


@pytest.mark.parametrize(
    ("messages", "forks"),
    [
        ([ASKED, PLAIN, ASKED, PLAIN, ASKED, PLAIN], 0),
        ([ASKED, THOUGHT, ASKED, PLAIN], 1),
        ([ASKED, THOUGHT, ASKED, THOUGHT, ASKED, THOUGHT], 2),
        ([ASKED, THOUGHT, RESULT, THOUGHT], 0),
        ([ASKED, THOUGHT, RESULT, THOUGHT, ASKED, PLAIN], 1),
    ],
)
def test_every_prefix_that_a_reasoning_template_rewrites_is_counted(reasoning, messages, forks):
    ids, turns = sampled_episode(reasoning, messages, 1)
    assert reasoning.compare_history(ids, messages, 1, turns) == (forks == 0, forks)


@pytest.mark.parametrize(
    ("rewritten", "forks"), [([], 0), ([1], 1), ([0, 2], 2), ([3], 0), ([0, 1, 2, 3], 3)]
)
def test_turns_that_a_template_would_write_otherwise_fork_the_next_prompt(renderer, rewritten, forks):
    messages = [ASKED, *[PLAIN, ASKED] * 3, PLAIN]
    ids, turns = sampled_episode(renderer, messages, 1)
    parsed = [dict(m) for m in messages]
    for turn in rewritten:
        parsed[1 + 2 * turn]["content"] = "north, I say"
    assert renderer.compare_history(ids, parsed, 1, turns) == (not rewritten, forks)
    said = [renderer.tokenizer.decode(turn.tolist()) for turn in turns]
    assert renderer._forks_in_prompts(parsed, 1, said, None) == forks


class Counting:
    """A tokenizer that counts the messages it renders."""

    def __init__(self, tokenizer):
        self.tokenizer, self.rendered = tokenizer, 0
        self.eos_token_id, self.eos_token = tokenizer.eos_token_id, tokenizer.eos_token

    def apply_chat_template(self, conversation, **options):
        self.rendered += len(conversation)
        return self.tokenizer.apply_chat_template(conversation, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


def test_the_history_of_a_template_that_appends_is_not_rendered_once_for_every_turn(renderer):
    tokenizer = Counting(renderer.tokenizer)
    counting = ChatRenderer(tokenizer)
    messages = [ASKED, *[PLAIN, ASKED] * 50, PLAIN]
    ids, turns = sampled_episode(counting, messages, 1)
    parsed = [ASKED, {"role": "assistant", "content": "north, I say"}, *messages[2:]]
    tokenizer.rendered = 0
    assert counting.compare_history(ids, parsed, 1, turns) == (False, 1)
    assert tokenizer.rendered < 3 * len(messages)


def test_a_template_that_rewrites_history_costs_twice_as_much_for_twice_as_many_turns(reasoning):
    def rendered(num_turns):
        tokenizer = Counting(reasoning.tokenizer)
        counting = ChatRenderer(tokenizer)
        messages = [ASKED, *[THOUGHT, ASKED] * (num_turns - 1), THOUGHT]
        ids, turns = sampled_episode(counting, messages, 1)
        tokenizer.rendered = 0
        matches, forks = counting.compare_history(ids, messages, 1, turns)
        # The first of the prompts that are looked at follows no turn.
        assert not matches and forks == pytest.approx(num_turns - 1, rel=0.05)
        return tokenizer.rendered

    assert rendered(200) == pytest.approx(2 * rendered(100), rel=0.1)


def test_the_tokens_of_an_episode_keep_the_reasoning_that_the_template_would_drop(reasoning):
    messages = [ASKED, THOUGHT, ASKED, THOUGHT]
    ids, _ = sampled_episode(reasoning, messages, 1)
    kept = reasoning.tokenizer.decode(ids.tolist())
    fresh = reasoning.tokenizer.apply_chat_template(messages, tokenize=False)
    assert (kept.count("far"), fresh.count("far")) == (2, 1)


def test_a_template_that_refuses_the_history_counts_as_a_fork(renderer):
    tokenizer = copy.deepcopy(renderer.tokenizer)
    tokenizer.chat_template = (
        "{%- if messages | length > 2 and messages[1].content == 'north' %}"
        "{{- raise_exception('no') }}{% endif %}" + REASONING_TEMPLATE
    )
    strict = ChatRenderer(tokenizer)
    ids, turns = sampled_episode(strict, [ASKED, PLAIN, ASKED, PLAIN], 1)
    assert strict.compare_history(ids, [ASKED, PLAIN, ASKED, PLAIN], 1, turns) == (False, 1)


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


def test_half_a_surrogate_pair_is_refused_in_words(renderer):
    with pytest.raises(InputError, match="half a surrogate pair"):
        renderer.opening([{"role": "user", "content": "half \ud83d"}])


@pytest.mark.parametrize(("named", "stops"), [([2, 0, 3], [0, 3]), (0, [0]), (None, [])])
def test_every_end_token_of_the_generation_config_stops_a_turn(tiny_model, renderer, tmp_path, named, stops):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((folder / "generation_config.json").read_text()) | {"eos_token_id": named}
    (folder / "generation_config.json").write_text(json.dumps(config))
    loaded = load_renderer(str(folder))
    end = renderer.tokenizer.eos_token_id
    assert loaded.stop_token_ids == (end, *stops)
    for stop in (end, *stops):
        ids = np.asarray([*renderer.tokenizer.encode("north"), stop])
        assert loaded.text(ids) == "north"


def test_a_model_without_a_generation_config_stops_at_its_eos_token(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "generation_config.json").unlink()
    assert len(load_renderer(str(folder)).stop_token_ids) == 1


def test_what_a_renderer_remembers_is_bounded_in_bytes(renderer, monkeypatch):
    ids = renderer.opening([ASKED])
    monkeypatch.setattr(rendering, "CACHE_BYTES", 2 * (ids.nbytes + rendering._ENTRY_BYTES) + 64)
    small = ChatRenderer(renderer.tokenizer)
    first = small.opening([ASKED])
    for number in range(5):
        small.opening([{"role": "user", "content": f"goal {number}"}])
        assert small._cached_bytes == sum(i.nbytes + rendering._ENTRY_BYTES for i in small._cache.values())
        assert 0 < small._cached_bytes <= rendering.CACHE_BYTES
        assert small.opening([ASKED]) is first, "what is used stays"


@pytest.mark.slow
def test_a_tokenizer_is_loaded_without_torch_which_can_be_imported_afterwards(tiny_model, renderer):
    program = """
import json, sys
from asyncrl.chat.renderer import import_tokenizers_only, load_renderer
import_tokenizers_only()
renderer = load_renderer(sys.argv[1])
assert "torch" not in sys.modules
ids = renderer.opening(json.loads(sys.argv[2]), None)
import torch
print(json.dumps([torch.tensor(ids).tolist(), list(renderer.stop_token_ids)]))
"""
    command = [sys.executable, "-c", program, tiny_model, json.dumps(OPENING)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        renderer.opening(OPENING, None).tolist(),
        list(renderer.stop_token_ids),
    ]
    assert done.stderr == ""
