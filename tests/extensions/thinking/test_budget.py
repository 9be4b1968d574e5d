"""Thinking that is ended, or prolonged, with a real engine: which tokens come out, and that none is made anew."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from asyncrl.chat.renderer import load_renderer
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.thinking.budget import WAITS, ThinkingBudget, marks_of
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.rollout.evaluation_generator import evaluation_generator
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
from tests.conftest import CORPUS
from tests.credentials import RUN
from tests.engines import serving

CONTEXT = 256


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A folder with a random model whose tokenizer has marks of thinking."""
    folder = tmp_path_factory.mktemp("thinker")
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    tokenizer.add_tokens(["<think>", "</think>"])
    save(folder, build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0), tokenizer)
    return str(folder)


@pytest.fixture(scope="module")
def marks(thinker):
    return marks_of(load_renderer(thinker))


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
    assert set(found.versions.tolist()) == {3}
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
    assert forced.versions.tolist() == [0] * len(forced.token_ids)


def test_a_model_without_marks_of_thinking_is_refused(renderer):
    config = parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld"}, "eval": {"most_thinking": 9}}
    )
    with pytest.raises(ConfigError, match=r"to which <think> is \d tokens and not one"):
        evaluation_generator(config, renderer, Script())


def test_an_evaluation_without_budgets_samples_as_it_is(renderer):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    script = Script()
    assert evaluation_generator(config, renderer, script) is script
