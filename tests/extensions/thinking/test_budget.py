"""Thinking that is ended, or prolonged, with a real engine: which tokens come out, and that none is made anew."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits, load_renderer
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import ConfigError
from asyncrl.extensions.thinking.budget import WAITS, ThinkingBudget, marks_of
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.turn_generators import evaluation_generator, training_generator
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.step.step_batch import build_step_batch, sampled_tokens
from asyncrl.types import NOT_SAMPLED, Group, Task
from tests.credentials import RUN
from tests.engines import serving


@pytest.fixture(scope="module")
def marks(thinker):
    return marks_of(load_renderer(thinker), "eval.most_thinking")


def ids(renderer, text):
    return np.array(renderer.tokenizer.encode(text, add_special_tokens=False), np.int32)


class Script:
    """Samples what it is told, up to the first stop token or the limit; each piece is on the tokens before it."""

    def __init__(self, *pieces):
        self.pieces, self.asked = [list(one) for one in pieces], []

    async def generate(self, request):
        self.asked.append(request)
        said, found = self.pieces.pop(0), []
        while (
            said
            and len(found) < request.max_tokens
            and (not found or found[-1] not in request.stop_token_ids)
        ):
            found.append(said.pop(0))
        stopped = bool(found) and found[-1] in request.stop_token_ids
        count = len(found)
        return Generated(
            np.array(found, np.int32), np.full(count, -0.5, np.float32), np.full(count, 3, np.int32),
            "stop" if stopped else "length", engine="e",
        )  # fmt: skip


STOP, WORD = 1, 50


def turn(script, marks, most=None, least=0, max_tokens=64, opened=True, closed=False):
    """Return the turn, as tokens, and the generated object."""
    context = [9, marks.open] if opened else [9]
    context += [marks.close] if closed else []
    request = GenerateRequest("r", np.array(context, np.int32), max_tokens, stop_token_ids=(STOP,))
    found = asyncio.run(ThinkingBudget(script, marks, most, least).generate(request))
    assert len(found.token_ids) == len(found.logprobs) == len(found.versions) <= max_tokens
    asked = [one.token_ids.tolist() for one in script.asked]
    assert asked == sorted(asked, key=len)
    return found.token_ids.tolist(), found


def test_thinking_that_has_not_ended_is_ended_and_the_answer_follows(marks):
    script = Script([WORD] * 99, [7, STOP])
    tokens, found = turn(script, marks, most=5)
    assert tokens == [WORD] * 5 + [*marks.closing] + [7, STOP]
    assert found.logprobs.tolist() == [-0.5] * 5 + [0.0] * len(marks.closing) + [-0.5] * 2
    assert found.versions.tolist() == [3] * 5 + [NOT_SAMPLED] * len(marks.closing) + [3] * 2
    assert (found.finish_reason, found.engine) == ("stop", "e")
    assert script.asked[1].token_ids.tolist() == [9, marks.open, *tokens[:-2]]


def test_thinking_that_ends_too_early_goes_on_with_wait_in_place_of_its_end(marks):
    script = Script([WORD, marks.close], [WORD] * 6 + [marks.close], [7, STOP])
    tokens, _ = turn(script, marks, least=6)
    assert tokens == [WORD, *marks.wait, *[WORD] * 6, marks.close, 7, STOP]


def test_a_model_that_ends_its_thinking_again_and_again_is_asked_no_further(marks):
    script = Script(*[[marks.close]] * (WAITS + 1), [7, STOP])
    tokens, _ = turn(script, marks, least=100, max_tokens=128)
    assert tokens == [*marks.wait] * WAITS + [marks.close, 7, STOP]


@pytest.mark.parametrize(
    ("pieces", "given", "expected"),
    [
        # Thinking that ends by itself, in time.
        ([[WORD, "close"], [7, STOP]], {"most": 9}, [WORD, "close", 7, STOP]),
        # A turn that ends while it thinks.
        ([[WORD, STOP]], {"most": 9}, [WORD, STOP]),
        # No thinking at all: the prompt has closed it.
        ([[7, STOP]], {"most": 0, "closed": True}, [7, STOP]),
        # A turn that never begins to think keeps its words.
        ([[WORD] * 2, [7, STOP]], {"most": 2, "opened": False}, [WORD, WORD, 7, STOP]),
        # One that begins by itself.
        ([["open", WORD, WORD], [7, STOP]], {"most": 2, "opened": False}, ["open", WORD, "closing", 7, STOP]),
        ([["open"], [7, STOP]], {"most": 0, "opened": False}, ["open", "closing", 7, STOP]),
        ([[7, STOP]], {"most": 0}, ["closing", 7, STOP]),
        # No room is left.
        ([[WORD] * 9], {"most": 9, "max_tokens": 4}, [WORD] * 4),
    ],
)
def test_what_comes_of_a_turn(marks, pieces, given, expected):
    named = {"open": [marks.open], "close": [marks.close], "closing": [*marks.closing]}

    def written(tokens):
        return [one for token in tokens for one in named.get(token, [token])]

    assert turn(Script(*map(written, pieces)), marks, **given)[0] == written(expected)


@pytest.mark.slow
def test_a_real_engine_goes_on_from_exactly_what_it_sampled(thinker, marks, tmp_path):
    renderer = load_renderer(thinker)
    context = ids(renderer, "<|im_start|>user\nsay 7<|im_end|>\n<|im_start|>assistant\n<think>\n")

    def request(name, token_ids, max_tokens):
        return GenerateRequest(
            name, token_ids, max_tokens, temperature=0.0, stop_token_ids=renderer.stop_token_ids
        )

    async def scenario(url):
        engine = EngineClient(url, RUN.bearer("engine"), 120.0)
        try:
            plain = await engine.generate(request("plain", context, 40))
            budget = ThinkingBudget(engine, marks, 12)
            forced = await budget.generate(request("forced", context, 40))
            put = np.concatenate([context, forced.token_ids[: 12 + len(marks.closing)]])
            rest = await engine.generate(request("rest", put, 40 - 12 - len(marks.closing)))
            return plain, forced, rest
        finally:
            await engine.close()

    with serving(Path(tmp_path), thinker) as process:
        plain, forced, rest = asyncio.run(scenario(process.url))
    assert len(plain.token_ids) >= 12 and marks.close not in plain.token_ids[:12]
    assert forced.token_ids[:12].tolist() == plain.token_ids[:12].tolist()
    assert forced.token_ids[12 : 12 + len(marks.closing)].tolist() == [*marks.closing]
    assert forced.token_ids[12 + len(marks.closing) :].tolist() == rest.token_ids.tolist()
    np.testing.assert_allclose(forced.logprobs[:12], plain.logprobs[:12], atol=1e-4)
    sampled = forced.versions != NOT_SAMPLED
    assert set(forced.versions[sampled].tolist()) == {0}
    assert np.flatnonzero(~sampled).tolist() == [12 + n for n in range(len(marks.closing))]


def test_a_model_without_marks_of_thinking_is_refused(renderer):
    config = parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld"}, "eval": {"most_thinking": 9}}
    )
    with pytest.raises(ConfigError, match=r"to which <think> is \d tokens and not one"):
        evaluation_generator(config, renderer, Script())


def test_training_has_a_budget_of_its_own(thinker, renderer):
    given = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "rollout": {"most_thinking": 5}}
    config, script = parse_config(given), Script()
    found = training_generator(config, load_renderer(thinker), script)
    assert isinstance(found, ThinkingBudget)
    assert (found.most, found.least, found.generator) == (5, 0, script)
    assert evaluation_generator(config, renderer, script) is script
    with pytest.raises(ConfigError, match=r"rollout\.most_thinking: must be left out for this model"):
        training_generator(config, renderer, script)


def test_what_is_put_in_is_context_in_training_and_no_part_of_the_loss(thinker, marks):
    renderer = load_renderer(thinker)
    stop = renderer.stop_token_ids[0]
    script = Script([marks.open, *[WORD] * 9], [7, stop])
    settings = EpisodeSettings(Limits(1, 16, 256))
    player = ChatPlayer(ThinkingBudget(script, marks, 3), LocalEnvs(), renderer, parse_hermes, settings)
    task = Task("t", "gridworld", 0)
    (played,) = asyncio.run(player.play(EpisodeRequest(task, 0, "e")))
    (turn,), put = played.turns, len(marks.closing)
    own = slice(turn.start, turn.end)
    assert played.token_ids[own].tolist() == [marks.open, WORD, WORD, *marks.closing, 7, stop]
    assert played.loss_mask[own].tolist() == [True] * 3 + [False] * put + [True] * 2
    assert played.behavior_logprobs[own].tolist() == [-0.5] * 3 + [0.0] * put + [-0.5] * 2
    # The trainer reads it so, too: what is put in is there, and is not counted.
    group = decode_group(encode_group(Group("g", task, 3, (played, replace(played, episode_index=1)))))
    rows = sampled_tokens(build_step_batch([group], step=3, max_staleness=0), [0])
    assert rows.mask.sum() == 5


def test_an_evaluation_without_budgets_samples_as_it_is(renderer):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    script = Script()
    assert evaluation_generator(config, renderer, script) is script
    assert training_generator(config, renderer, script) is script
