"""What `[judge]` may be, and what it rules out."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.launch.checks.check import check_extensions, check_recipe

URL = {"url": "http://j"}
RUBRIC = {"rubric": "Is it right?"}


def recipe(judge, **sections):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": judge} | sections)


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({**URL, "components": {"a": {}}}, "judge.components.a: must have either a rubric or a function"),
        (
            {**URL, "components": {"a": {**RUBRIC, "function": "m.py:f"}}},
            "judge.components.a: must have either a rubric or a function",
        ),
        (
            {**URL, "components": {"a": {**RUBRIC, "scale": [5, 1]}}},
            "judge.components.a: scale must be the least and the most",
        ),
        ({**URL, "components": {"a": {**RUBRIC, "scale": [5]}}}, "judge.components.a.scale"),
        (
            {"components": {"a": {"function": "m.py:f", "scale": [0, 1]}}},
            "judge.components.a: a scale is for a rubric",
        ),
        ({**URL, "components": {"a": {"rubrik": "x"}}}, "judge.components.a.rubrik: unknown key"),
        ({**URL, "components": {"Right": RUBRIC}}, "judge.components: 'Right' is no name of a component"),
        ({**URL, "components": {"turn": RUBRIC}}, "judge.components: 'turn' is no name of a component"),
        ({"components": {"a": RUBRIC}}, "judge.url: must be given with judge.components with a rubric"),
        ({"per_turn": True}, "judge.url: must be given with judge.per_turn"),
        ({"samples": 2}, "judge.url: must be given with judge.samples"),
        ({**URL, "samples": 0}, "judge.samples"),
        ({**URL, "kind": "score", "per_turn": True}, "judge.kind: must be 'chat' with judge.per_turn"),
        ({**URL, "kind": "score", "samples": 2}, "judge.kind: must be 'chat' with judge.samples"),
        (
            {**URL, "kind": "score", "components": {"a": RUBRIC}},
            "judge.kind: must be 'chat' with judge.components",
        ),
        ({**URL, "kind": "folder", "model": "rm"}, "judge.url must be left out with judge.kind='folder'"),
        ({"kind": "folder"}, "judge.model: must be the folder of a reward model with judge.kind='folder'"),
        ({"kind": "folder", "model": "rm", "max_requests": 1}, "judge.max_requests must be 0 with"),
        (
            {"kind": "folder", "model": "rm", "per_turn": True},
            "judge.kind: must be 'chat' with judge.per_turn",
        ),
        (
            {"kind": "folder", "model": "rm", "relative": "ranking"},
            "judge.kind must be 'chat' with judge.relative",
        ),
        (
            {"kind": "folder", "model": "rm", "components": {"a": {"function": "m.py:f"}}},
            "judge.components: must have one with an output of the reward model",
        ),
        (
            {**URL, "components": {"a": {"output": "x"}}},
            "judge.kind: must be 'folder' or 'score' with judge.components with an output",
        ),
        (
            {**URL, "kind": "score", "max_total_tokens": 9},
            "judge.max_total_tokens: is not read without a chat judge",
        ),
        ({**URL, "kind": "policy"}, "judge.url must be left out with judge.kind='policy'"),
        ({**URL, "vote": "median"}, "judge.vote: is not read with judge.samples=1, got 'median'"),
        ({"max_requests": 5}, "judge.max_requests: is not read without a judge.url, got 5"),
        ({**URL, "prompt": "Rate it."}, "judge.prompt: must contain {conversation}, got 'Rate it.'"),
        (
            {**URL, "prompt": "{conversation}", "components": {"a": RUBRIC}},
            "judge.prompt: must contain {form}: it says how the reply to several questions ends",
        ),
        (
            {**URL, "components": {"a": {"function": "m.py:f"}}},
            "judge.components: must have one with a rubric where there is a judge.url",
        ),
    ],
)
def test_what_is_wrong_or_not_read_is_refused_by_its_key(judge, message):
    with pytest.raises(ConfigError) as refused:
        recipe(judge)
    assert message in str(refused.value)


@pytest.mark.parametrize(("kind", "key"), [("folder", "reward_model"), ("policy", "judge_engine")])
def test_a_gpu_is_for_a_judge_that_the_run_serves(kind, key):
    config = recipe({"kind": kind, "model": "m"}, placement={key: [1]})
    assert getattr(config.placement, key) == [1]
    with pytest.raises(ConfigError, match=rf"placement\.{key} must be left out without judge\.kind='{kind}'"):
        recipe(URL, placement={key: [1]})


def test_an_evaluation_must_be_told_which_version_judges():
    every = {"eval": {"every": 2, "tasks": 2}}
    with pytest.raises(
        ConfigError, match=r"judge\.model: must name the model that the run starts from .*eval\.every=2"
    ):
        recipe({"kind": "policy"}, **every)
    assert recipe({"kind": "policy", "model": "m"}, **every).section(JudgeConfig).served


def test_an_agent_is_not_scored_by_functions_either():
    with pytest.raises(ConfigError, match=r"judge\.components must be left out for env\.name='agent'"):
        recipe(
            {"components": {"a": {"function": "m.py:f"}}},
            env={"name": "agent", "config": {"function": "m.py:g"}},
        )


def test_a_function_that_is_not_there_is_refused_before_anything_starts(tmp_path):
    config = recipe({"components": {"a": {"function": f"{tmp_path}/none.py:f"}}})
    with pytest.raises(ConfigError, match=r"judge\.components\.a\.function: .*none\.py"):
        check_extensions(config)


def test_components_of_a_judge_are_what_gdpo_learns_from_where_the_environment_gives_none():
    silent = {"env": {"name": "tests.env.test_provided:Silent"}, "algo": {"preset": "gdpo"}}
    check_recipe(recipe(URL, **silent))
    with pytest.raises(ConfigError, match="gives no components"):
        check_recipe(recipe({}, **silent))


def test_a_judge_is_there_with_a_server_or_with_functions():
    assert [JudgeConfig(**one).active for one in ({}, URL, {"components": {"a": {"function": "m.py:f"}}})] == [
        False, True, True,
    ]  # fmt: skip


def test_the_policy_judges_on_one_machine_alone():
    config = recipe({"kind": "policy"})
    with pytest.raises(
        ConfigError, match=r"judge\.kind: 'policy' is for runs on one machine.*give judge\.url"
    ):
        check_extensions(config, alone=False)
    check_extensions(config)
