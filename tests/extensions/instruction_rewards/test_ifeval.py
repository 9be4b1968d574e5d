"""The reward "ifeval": an answer is judged by lm-eval's checks, in a Python that has them."""

import asyncio

import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.instruction_rewards.ifeval import InstructionFollowing, checks_of
from asyncrl.rewards import Completion, NotJudged, load_reward
from tests.benchmark_env import benchmark_python

ROW = {
    "key": 1000,
    "prompt": "Praise the sea in at least six words and without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"relation": "at least", "num_words": 6, "num_sentences": None}],
}


def said(text, row=ROW):
    return Completion([{"role": "user", "content": row["prompt"]}], text, "", row)


@pytest.mark.slow
def test_a_reward_is_one_where_all_instructions_are_followed_after_the_reasoning(pytestconfig):
    reward = InstructionFollowing(benchmark_python(pytestconfig.cache.mkdir("benchmark-clients")))
    right, wrong = asyncio.run(
        reward.score(
            [
                said("<think>Deep, blue.</think>The sea is deep and blue and calm."),
                said("The sea, so deep and blue and calm."),
            ]
        )
    )
    assert (right.total, right.success, wrong.total, wrong.success) == (1.0, True, 0.0, False)
    assert right.components == {"ifeval": 1.0, "instructions_strict": 1.0, "instructions_loose": 1.0}
    assert wrong.components == {"ifeval": 0.0, "instructions_strict": 0.5, "instructions_loose": 0.5}


def test_a_row_without_instructions_is_told_and_never_worth_0():
    row = {"prompt": "p", "id": "r7"}
    reward = load_reward("ifeval")
    assert reward.check_row(row) == "no column 'instruction_id_list'"
    with pytest.raises(NotJudged, match="reward 'ifeval', row 'r7': no column 'instruction_id_list'"):
        asyncio.run(reward.score([said("x", row)]))


def test_a_python_without_lm_eval_judges_nothing():
    with pytest.raises(InfrastructureError, match="did not start in /no/such/python: install lm-eval"):
        asyncio.run(InstructionFollowing("/no/such/python").score([said("x")]))
    checks_of.cache_clear()
