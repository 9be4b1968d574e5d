"""Datasets of reasoning-gym as environments."""

import inspect
import re
import sys

import pytest

from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.reasoning_gym import EVALUATING, ReasoningGym
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.packages import needs

needs("reasoning_gym")


def task(seed=0):
    return Task("t", "reasoning_gym", seed)


def test_the_adapter_passes_every_check():
    assert [f for f in check_env("reasoning_gym", num_tasks=20) if not f.ok] == []


@pytest.mark.parametrize(
    "dataset", ["countdown", "spiral_matrix", "sudoku", "simple_equations", "base_conversion"]
)
def test_the_stated_answer_scores_one_and_nonsense_does_not(dataset):
    env = ReasoningGym(task(4), dataset)
    step = env.step(Action(env.oracle([])["content"]))
    assert (step.reward, step.success, step.done) == (1.0, True, True)
    assert env.step(Action("<answer>nonsense</answer>")).reward < 1.0


def test_only_the_last_answer_in_tags_counts_and_a_plain_one_is_the_whole_turn():
    tagged = ReasoningGym(task(), "leg_counting")
    right = tagged.entry["answer"]
    assert tagged.step(Action(f"so <answer>0</answer>, no, <answer>{right}</answer>")).success
    unanswered = tagged.step(Action(right))
    assert (unanswered.reward, unanswered.components["answered"]) == (0.0, 0.0)
    assert "<answer>" in tagged.reset()[0]["content"]
    plain = ReasoningGym(task(), "leg_counting", answer="plain")
    assert [m["role"] for m in plain.reset()] == ["user"]
    assert plain.step(Action(f" {right}\n")).reward == 1.0


def test_settings_reach_the_dataset_and_composites_mix_datasets():
    env = ReasoningGym(task(), "chain_sum", {"min_terms": 5, "max_terms": 5})
    assert len(re.findall(r" [+-] ", env.entry["question"])) == 4
    specs = [{"name": name, "weight": 1.0, "config": {}} for name in ("leg_counting", "chain_sum")]
    mixed = [ReasoningGym(task(seed), "composite", {"datasets": specs}) for seed in range(20)]
    assert {e.entry["metadata"]["source_dataset"] for e in mixed} == {"leg_counting", "chain_sum"}
    assert all(e.step(Action(e.oracle([])["content"])).success for e in mixed)


def test_no_question_is_in_both_splits_however_few_there_are():
    tiny = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    splits = [
        {ReasoningGym(task(s), "chain_sum", tiny).problem_key() for s in range(i, 200, 2)} for i in (0, 1)
    ]
    assert len(splits[0]) > 20 and len(splits[1]) > 20 and not splits[0] & splits[1]


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_an_answer_that_is_code_never_runs(dataset):
    sys.modules.pop("this", None)
    env = ReasoningGym(task(), dataset, answer="plain")
    step = env.step(Action("__import__('this') or [['0']]"))
    assert (step.reward, step.components["refused"]) == (0.0, 1.0)
    assert "this" not in sys.modules


def test_every_dataset_whose_scorer_evaluates_answers_is_known():
    import reasoning_gym

    calls = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
    found = set()
    for name, (dataset, _) in reasoning_gym.factory.DATASETS.items():
        scorer = inspect.getsource(dataset.score_answer)
        if calls.search(re.sub(r"eval\(entry\[.*", "", scorer)):
            found.add(name)
    assert found - {"propositional_logic"} == EVALUATING, "propositional_logic has a parser of its own"


def test_a_dataset_without_a_stated_answer_has_no_oracle():
    with pytest.raises(NotImplementedError):
        ReasoningGym(task(), "rush_hour").oracle([])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"dataset": "chainsum"}, "dataset: unknown 'chainsum'; allowed: .*chain_sum"),
        ({"answer": "json"}, "answer: must be one of tagged, plain"),
        ({"settings": {"seed": 1}}, "settings: 'seed' follows from the task"),
        ({"settings": {"terms": 1}}, "dataset 'chain_sum' refuses .*terms"),
        ({"settings": {"min_terms": 5, "max_terms": 2}}, "refuses"),
    ],
)
def test_wrong_settings_are_named(config, problem):
    with pytest.raises(ValueError, match=problem):
        ReasoningGym(task(), **config)


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[reasoning-gym\]'"):
        ReasoningGym(task())
