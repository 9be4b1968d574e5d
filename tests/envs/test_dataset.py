"""A row of a data set is asked once and scored by the reward that the recipe names."""

import asyncio
import json
from random import Random

import pytest

from asyncrl.config import parse_config
from asyncrl.env.config_check import env_services
from asyncrl.env.protocol import Action
from asyncrl.env.registry import runs_in_worker
from asyncrl.envs.dataset.env import Dataset
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task

PROMPT = {"role": "user", "content": "What is 40 + 2?"}


def make(reward="exact", **row):
    data = {"messages": [PROMPT], "question": "What is 40 + 2?", "answer": 42, **row}
    return Dataset(Task("t", "dataset", data=data), data={"train": "a.jsonl", "reward": reward})


def step(env, content):
    return asyncio.run(env.step(Action(content)))


def test_a_row_is_one_turn_whose_answer_is_scored():
    env = make()
    assert env.reset() == [PROMPT]
    right = step(env, "42")
    assert (right.reward, right.done, right.success) == (1.0, True, True)
    assert (step(make(), "41").reward, step(make(), "41").success) == (0.0, False)


@pytest.mark.parametrize(
    "text", ["\\boxed{42}", "<think>\nIs it 41?\n</think>\n\nThe answer is 42.", "**42**", "So it is 42."]
)
def test_what_was_taken_as_the_answer_is_kept(text):
    found = step(make("math"), text)
    assert (found.reward, found.extracted) == (1.0, "42")


def test_a_function_of_ones_own_gets_the_row_without_the_opening_messages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_reward_of_rows.py").write_text(
        "def score(completions, answer, level, **columns):\n"
        "    assert 'messages' not in columns\n"
        "    return [n * (str(a) in c) for c, a, n in zip(completions, answer, level)]\n"
    )
    env = make(f"{tmp_path}/own_reward_of_rows.py:score", level=3)
    assert step(env, "It is 42").reward == 3.0


def test_without_a_reward_a_judge_scores_it():
    found = step(make(""), "anything")
    assert (found.reward, found.done, found.success) == (0.0, True, None)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "42"),
        ({"answer": "So 40 + 2 = <<40+2=42>>42.\n#### 42"}, "42"),
        ({"answer": 42.0}, "42"),
        ({"answer": ["Paris", "paris"]}, "Paris"),
    ],
)
def test_the_oracle_says_the_rows_answer(row, said):
    assert make(**row).oracle([PROMPT]) == {"role": "assistant", "content": said}


def test_a_row_without_an_answer_has_no_scripted_policies():
    env = make()
    del env.task.data["answer"]
    for policy in (lambda: env.oracle([PROMPT]), lambda: env.random_policy([PROMPT], Random(0))):
        with pytest.raises(NotImplementedError):
            policy()


def test_the_random_policy_answers_in_the_answers_kind():
    def said(**row):
        return {make(**row).random_policy([PROMPT], Random(seed))["content"] for seed in range(200)}

    assert said() <= {str(n) for n in range(100)}
    assert len(said()) > 50
    assert said(answer="B", choices=["x", "y", "z"]) == {"A", "B", "C"}
    assert said(answer="Paris") == {"What", "is", "40", "+", "2?"}


def test_it_runs_in_the_rollout_worker_where_its_reward_neither_blocks_nor_runs_code():
    def services(reward):
        data = {"train": "a.jsonl", "reward": reward}
        return env_services(parse_config({"model": {"path": "m"}, "data": data}))

    assert (services("exact"), services("choice"), services("")) == (0, 0, 0)
    assert services(["exact", {"name": "choice", "weight": 0.5}]) == 0
    assert (services("math"), services("my.py:f"), services(["exact", "math"])) == (1, 1, 1)
    assert not runs_in_worker(Dataset)


def test_it_passes_the_checks_of_environments(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"What is {n} + {m}?", "answer": n + m} for n in range(20) for m in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train": str(path), "heldout_share": 0.1, "reward": "exact"}
    findings = check_env("dataset", {"data": data}, 20)
    assert [(one.name, one.seen) for one in findings if not one.ok] == []


def test_wrong_settings_are_refused_by_their_key():
    with pytest.raises(ConfigError, match=r"data\.limit: .* got -1"):
        next(Dataset.tasks("train", "dataset", data={"train": "a.jsonl", "limit": -1}))
