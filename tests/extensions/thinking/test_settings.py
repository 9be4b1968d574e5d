"""Budgets of thinking in recipes, suites and leaderboards."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.leaderboard import _columns
from asyncrl.extensions.benchmarks.suite import Suite
from asyncrl.extensions.benchmarks.suite_play import suite_config
from asyncrl.extensions.thinking.settings import ThinkingConfig, TrainedThinkingConfig

PART = {"env": "calculator", "tasks": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"most_thinking": 5, "least_thinking": 6},
            "eval.least_thinking: must be at most eval.most_thinking=5, got 6",
        ),
        ({"most_thinking": 64}, "eval.most_thinking: must be below rollout.max_tokens_per_turn=64"),
        ({"most_thinking": -1}, "eval.most_thinking"),
        ({"least_thinking": 0}, "eval.least_thinking"),
    ],
)
def test_budgets_that_leave_no_room_are_refused(given, message):
    with pytest.raises(ConfigError) as refused:
        parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "rollout": {"max_tokens_per_turn": 64},
                "eval": given,
            }
        )
    assert message in str(refused.value)


def test_a_budget_of_training_leaves_room_for_an_answer():
    plain = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "rollout": {"max_tokens_per_turn": 64}}
    given = {**plain, "rollout": {"max_tokens_per_turn": 64, "most_thinking": 64}}
    with pytest.raises(
        ConfigError, match=r"rollout\.most_thinking: must be below rollout\.max_tokens_per_turn=64"
    ):
        parse_config(given)
    found = parse_config({**given, "rollout": {"max_tokens_per_turn": 64, "most_thinking": 63}})
    assert found.section(TrainedThinkingConfig).most_thinking == 63
    assert not found.section(ThinkingConfig).bounds_thinking


def suite(**more):
    return Suite(name="s", version=1, max_tokens_per_turn=64, parts={"calc": PART}, **more)


def test_a_suite_decides_how_long_is_thought(tiny_model):
    config = suite_config(suite(most_thinking=32, least_thinking=8), tiny_model, None, [])
    found = config.section(ThinkingConfig)
    assert (found.most_thinking, found.least_thinking) == (32, 8)
    assert not suite_config(suite(), tiny_model, None, []).section(ThinkingConfig).bounds_thinking
    with pytest.raises(ConfigError, match=r"fixes eval\.most_thinking"):
        suite_config(suite(), tiny_model, None, ["eval.most_thinking=3"])


def test_evaluations_with_different_budgets_share_no_column_and_those_without_do_with_older_ones():
    def key(**more):
        record = {"suite": suite(**more).model_dump(mode="json"), "tasks": {"calc": []}}
        return next(_columns(record))[0]

    old = {"suite": suite().model_dump(mode="json"), "tasks": {"calc": []}}
    for name in ("most_thinking", "least_thinking"):
        del old["suite"][name]
    assert key() == next(_columns(old))[0]
    assert len({key(), key(most_thinking=8), key(most_thinking=9), key(least_thinking=8)}) == 4
