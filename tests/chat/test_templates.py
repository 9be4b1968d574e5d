"""What a model family's chat template refuses is an outcome of the episode, and ids are such that all are taken."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits, TemplateRefused
from asyncrl.chat.tool_calls import parse_llama, parse_mistral
from asyncrl.env.protocol import Action, Env, Step, ToolCall
from asyncrl.extensions.hints.strategy import Hints
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.chat.templates import LLAMA_31, MISTRAL, THINKING, with_template

HERE = __name__
CALL = '{"name": "look", "parameters": {"x": 1}}'
USER = {"role": "user", "content": "goal"}


@pytest.fixture(scope="module")
def llama(renderer):
    return with_template(renderer, LLAMA_31, "<|eot_id|>", ["<|eom_id|>"])


@pytest.fixture(scope="module")
def mistral(renderer):
    return with_template(renderer, MISTRAL, "</s>")


class Saying:
    """Samples these texts, one a turn, each ended by the token `end`."""

    def __init__(self, renderer, *texts, end=None):
        end = renderer.stop_token_ids[0] if end is None else end
        self.turns = [
            np.asarray([*renderer.tokenizer.encode(t, add_special_tokens=False), end], np.int32)
            for t in texts
        ]

    async def generate(self, request):
        ids = self.turns.pop(0)
        return Generated(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop")


class Tools(Env):
    """Answers every call with a message without an id, as an environment in a few lines would; ends on plain text."""

    blocking = False
    max_turns = 4

    def reset(self):
        return [USER]

    def step(self, action):
        if not action.tool_calls and not action.parse_errors:
            return Step(reward=1.0, done=True, success=True)
        answers = [{"role": "tool", "content": call.name} for call in action.tool_calls]
        answers += [{"role": "tool", "content": error} for error in action.parse_errors]
        return Step(answers, reward=0.25)


class Talkative(Tools):
    """Sends two messages of the user where families want one."""

    def step(self, action):
        return Step([USER, USER], reward=0.25)


class Restless(Tools):
    def reset(self):
        return [USER, USER]


class Answering(Tools):
    """Answers one call with two messages."""

    def step(self, action):
        return Step([{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}])


def play(renderer, parse, env, *texts, **options):
    settings = EpisodeSettings(Limits(0, 64, 2000), check_history=True)
    player = ChatPlayer(Saying(renderer, *texts, **options), LocalEnvs(), renderer, parse, settings)
    return asyncio.run(player.play(EpisodeRequest(Task("t", f"{HERE}:{env}", 0), 0, "e")))[0]


def test_two_calls_in_one_turn_end_the_episode_as_the_agents_failure_where_the_template_takes_one(llama):
    t = play(llama, parse_llama, "Tools", f"{CALL}; {CALL}")
    assert (t.status, t.failure, t.success, t.usable) == (Status.FINISHED, None, False, True)
    assert t.components == {"agent_error": 1.0}
    assert (
        "a turn of 2 calls: the chat template refuses the messages: This model only supports single"
        in t.error
    )
    assert t.reward == 0.25, "what the environment had given stays"
    assert t.turns[-1].end == t.num_tokens


def test_one_call_a_turn_continues_under_the_same_template(llama):
    t = play(llama, parse_llama, "Tools", CALL, "done")
    assert (t.status, t.success, t.reward) == (Status.FINISHED, True, 1.25)
    assert "<|start_header_id|>ipython" in llama.tokenizer.decode(t.token_ids.tolist())


def test_a_malformed_call_beside_a_good_one_counts_as_a_second_call(llama):
    t = play(llama, parse_llama, "Tools", f'{CALL}; {{"name": 3}}')
    assert (t.status, t.components) == (Status.FINISHED, {"agent_error": 1.0})


def test_two_answers_to_one_call_are_the_environments_failure(llama):
    t = play(llama, parse_llama, "Answering", CALL)
    assert (t.status, t.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
    assert "Answering': the chat template refuses the messages: This model only" in t.error


@pytest.mark.parametrize("text", ["[TOOL_CALLS]", '[TOOL_CALLS][{"name": "look", "arguments": {}}]'])
def test_answers_without_ids_get_those_of_the_calls(mistral, text):
    t = play(mistral, parse_mistral, "Tools", text, "done")
    assert (t.status, t.failure, t.success) == (Status.FINISHED, None, True)
    kept = mistral.tokenizer.decode(t.token_ids.tolist())
    call_id = "fail00000" if text == "[TOOL_CALLS]" else "call00000"
    assert f'"call_id": "{call_id}"}}[/TOOL_RESULTS]' in kept


def test_several_calls_are_taken_where_the_template_takes_them(mistral):
    text = '[TOOL_CALLS][{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}, {"name": 3}]'
    t = play(mistral, parse_mistral, "Tools", text, "done")
    assert (t.status, t.success) == (Status.FINISHED, True)


def test_messages_that_break_the_order_of_roles_are_the_environments_failure(mistral):
    for env in ("Talkative", "Restless"):
        t = play(mistral, parse_mistral, env, "done")
        assert (t.status, t.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
        assert "roles must alternate" in t.error


@pytest.mark.parametrize("number", [0, 7])
def test_the_ids_of_calls_and_malformed_calls_are_nine_alphanumeric_characters(number):
    action = Action("", (ToolCall("call00000", "look", {}),), ("no JSON",) * (number + 1))
    ids = [m["tool_call_id"] for m in action.error_messages()]
    assert all(len(i) == 9 and i.isalnum() for i in ids)
    assert len({*ids, "call00000"}) == number + 2
    assert action.call_ids() == ["call00000", *ids]


def test_a_message_without_text_is_refused_and_not_a_crash(mistral):
    with pytest.raises(TemplateRefused, match="the chat template refuses the messages"):
        mistral.opening([{"role": "user", "content": None}])


def test_every_stop_token_ends_a_turn_and_is_kept_once_and_stripped_from_its_text(llama):
    eot, eom = llama.stop_token_ids
    assert llama.tokenizer.convert_ids_to_tokens([eot, eom]) == ["<|eot_id|>", "<|eom_id|>"]
    t = play(llama, parse_llama, "Tools", CALL, "42", end=eom)
    assert (t.status, t.success) == (Status.FINISHED, True), "graders see what was said and no stop token"
    assert t.token_ids[t.turns[0].end - 1] == eom
    assert t.token_ids[t.turns[0].end] not in (eot, eom)
    assert llama.text(t.token_ids[t.turns[1].start :]) == "42"


def test_the_token_that_the_template_ends_turns_with_is_first_also_where_it_is_not_the_eos_token(renderer):
    other = with_template(renderer, LLAMA_31, "<|end_of_text|>", ["<|eot_id|>"])
    assert other.tokenizer.convert_ids_to_tokens(list(other.stop_token_ids)) == [
        "<|eot_id|>",
        "<|end_of_text|>",
    ]
    ids = other.assistant({"role": "assistant", "content": "north"})
    assert other.tokenizer.decode(ids.tolist()) == "north<|eot_id|>"


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("north", "\n</think>\n\nnorth<|im_end|>"),
        ("<think>\nfar\n</think>\n\nnorth", "far\n</think>\n\nnorth<|im_end|>"),
    ],
)
def test_a_hint_under_a_template_that_opens_the_reasoning_ends_it(renderer, content, written):
    thinking = with_template(renderer, THINKING)
    ids = thinking.assistant({"role": "assistant", "content": content})
    assert thinking.tokenizer.decode(ids.tolist()) == written


def test_a_hint_that_cannot_be_written_fails_the_group_with_the_reason(llama):
    player = ChatPlayer(Saying(llama), LocalEnvs(), llama, parse_llama, EpisodeSettings(Limits(0, 64, 2000)))
    runner = EpisodeGroupRunner(player, [Hints(1, llama.assistant)])
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    refused = {"role": "assistant", "content": "", "tool_calls": [call, call]}
    task = Task("t", f"{HERE}:Tools", 0, data={"hint": [refused]})
    group = asyncio.run(runner.run_group(Lease("g", task, 0, 1, 2, 1, 60.0), "w", 30.0))
    assert [t.failure for t in group.trajectories] == [FailureClass.ENVIRONMENT] * 2
    assert "task t: the hint cannot be written: the chat template refuses" in group.trajectories[0].error
