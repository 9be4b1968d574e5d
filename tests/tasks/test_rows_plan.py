"""The rows of a run reach the ledger once an epoch, held-out ones never, and are checked before anything starts."""

import asyncio
import json
import sys
from collections import Counter
from itertools import islice

import pytest

from asyncrl.cli import main
from asyncrl.config import load_config, parse_config
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.curriculum.tasks import pool_of
from asyncrl.launch.checks.check import check_tasks
from asyncrl.launch.train import TrainRun
from asyncrl.rows.data import _opened
from asyncrl.run.folder import RunFolder
from asyncrl.tasks.plans import plan_tasks
from asyncrl.tasks.tasks import tasks_of
from tests.buffer.factories import group, ledger

REWARD = """
def score(completions, answer, **columns):
    return [float(str(a) in c) for c, a in zip(completions, answer)]
"""


class Buffer:
    """The real ledger, called in place."""

    def __init__(self):
        self.ledger = ledger(count=0, groups_per_step=2, max_staleness=0)

    async def status(self):
        return self.ledger.stats()

    async def add_tasks(self, tasks):
        return self.ledger.add_tasks(list(tasks))

    async def close_plan(self):
        self.ledger.close_plan()

    def train(self, plan, number):
        """Lease, play and train so many tasks; return what was leased."""
        leased = []
        for _ in range(number // 2):
            asyncio.run(plan.feed(self))
            leases = [self.ledger.lease("w") for _ in range(2)]
            for one in leases:
                self.ledger.put(group(one))
            version = self.ledger.version
            self.ledger.take(version)
            self.ledger.commit(version + 1)
            leased += [one.task for one in leases]
        return leased


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_reward.py").write_text(REWARD)


def written(name, rows):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return name


def numbered(name, numbers):
    return written(name, [{"question": f"What is {n}?", "answer": n} for n in numbers])


def config(**data):
    recipe = {"model": {"path": "m"}, "buffer": {"groups_per_step": 2}, "data": {"reward": "exact", **data}}
    return parse_config(recipe)


def test_no_held_out_row_is_ever_leased_and_every_other_one_is_once_an_epoch():
    recipe = config(train=numbered("all.jsonl", range(40)), heldout_share=0.2)
    heldout = {task.data["answer"] for task in tasks_of(recipe, "heldout")}
    trained = set(range(40)) - heldout
    assert heldout
    leased = Buffer().train(plan_tasks(recipe), 4 * len(trained) // 2 * 2)
    answers = [task.data["answer"] for task in leased]
    assert not heldout & set(answers)
    assert {task.split for task in leased} == {"train"}
    epochs = [answers[start : start + len(trained)] for start in range(0, 3 * len(trained), len(trained))]
    assert all(Counter(epoch) == Counter(trained) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert len({task.id for task in leased}) == len(leased)


def test_a_plan_that_starts_over_goes_on_at_the_row_and_epoch_where_it_was():
    recipe = config(train=numbered("a.jsonl", range(10)), heldout_share=0)
    whole = Buffer().train(plan_tasks(recipe), 36)
    buffer, resumed = Buffer(), []
    for _ in range(6):
        # A new launcher plans from the start; the ledger knows what it had.
        resumed += buffer.train(plan_tasks(recipe), 6)
    assert [task.id for task in resumed] == [task.id for task in whole]
    assert resumed == whole


def test_a_run_says_which_rows_it_has_and_goes_on_with_no_others(tmp_path, capsys):
    recipe = config(train=numbered("a.jsonl", range(30)), heldout_share=0.1)
    with RunFolder(tmp_path / "run") as folder:
        TrainRun(recipe, folder)._tell_of_rows()
        assert "data: 2" in capsys.readouterr().err
        TrainRun(recipe, folder, resume=True)._tell_of_rows()
        numbered("a.jsonl", range(31))
        _opened.cache_clear()  # another process resumes it
        with pytest.raises(ConfigError, match=r"the rows are not those that .*run began with"):
            TrainRun(recipe, folder, resume=True)._tell_of_rows()


def test_a_curriculum_chooses_among_all_rows():
    data = {"train": numbered("a.jsonl", range(9)), "heldout_share": 0}
    recipe = parse_config({"model": {"path": "m"}, "curriculum": {"name": "uniform"}, "data": data})
    assert sorted(task.data["answer"] for task in pool_of(recipe)) == list(range(9))


def test_a_task_file_says_which_of_its_tasks_are_held_out():
    lines = [{"id": f"t{n}", "split": "heldout" if n % 2 else "train", "data": {"n": n}} for n in range(6)]
    recipe = parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld", "task_file": written("t.jsonl", lines)}}
    )
    assert [task.id for task in tasks_of(recipe, "train")] == ["t0", "t2", "t4"]
    assert [task.id for task in tasks_of(recipe, "heldout")] == ["t1", "t3", "t5"]
    assert {task.id for task in Buffer().train(plan_tasks(recipe), 2)} == {"t0", "t2"}
    written("t.jsonl", [{"id": "a"}, {"id": "b"}])
    assert next(tasks_of(recipe, "heldout")).id == "heldout-1"
    written("t.jsonl", [{"id": "a", "split": "test"}])
    with pytest.raises(InputError, match="line 1: split: must be 'train' or 'heldout', got 'test'"):
        next(tasks_of(recipe, "train"))
    written("t.jsonl", [{"id": "a", "split": "heldout"}])
    with pytest.raises(ConfigError, match="every task is held out"):
        plan_tasks(recipe)


def test_held_out_tasks_that_an_environment_cannot_make_itself_are_asked_for():
    lines = [{"id": "a", "data": {"question": "1 + 1?", "answer": "2"}}]
    env = {"name": "asyncrl.envs.benchmarks.answer:Answer", "task_file": written("t.jsonl", lines)}
    recipe = parse_config({"model": {"path": "m"}, "env": env})
    with pytest.raises(ConfigError, match=r"no task whose split is 'heldout', and .* KeyError: 'question'"):
        check_tasks(recipe)
    written("t.jsonl", [*lines, lines[0] | {"id": "b", "split": "heldout"}])
    check_tasks(recipe)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train=none.jsonl"], "data.train: there is no file or folder"),
        (["data.train=train.jsonl", "data.prompt='{quest}'"], "train.jsonl has no column 'quest'; there are"),
        (["data.train=train.jsonl", "data.answer=gold"], "data.answer: .*has no column 'gold'"),
        (["data.train=train.jsonl", "data.heldout=train.jsonl"], "10 training rows have the prompt of a held-out row"),
        (["data.train=train.jsonl", "data.heldout=empty.jsonl"], "empty.jsonl: holds no row"),
        (["data.train=broken.jsonl"], "broken.jsonl, line 2: no JSON"),
        (["data.train=train.jsonl", "data.heldout_share=0"], "there is no held-out row; .*eval.tasks=100 needs some"),
        (["data.train=train.jsonl", "data.reward=''"], "data.reward: missing; name one"),
        (["data.train=train.jsonl", "data.reward=mth"], "data.reward: unknown reward 'mth'"),
        (["data.train=train.jsonl", "env.name=gridworld"], "data.reward: must be left out for env.name='gridworld'"),
        (["data.heldout=train.jsonl"], "data.train: missing; name the rows to train on"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_rows_is_named_before_there_is_a_run_folder(tmp_path, capsys, overrides, message):
    numbered("train.jsonl", range(10))
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"question": "q", "answer": 1}\n{"question\n')
    (tmp_path / "r.toml").write_text('model.path = "sft"\n[data]\nreward = "exact"\n')
    with pytest.raises((ConfigError, InputError), match=message):
        check_tasks(load_config("r.toml", overrides))
    assert main(["train", "r.toml", *overrides]) == 2
    assert capsys.readouterr().err.startswith("asyncrl: ")
    assert not (tmp_path / "runs").exists()


def test_rows_with_a_known_reward_pass(tmp_path):
    (tmp_path / "r.toml").write_text(
        'model.path = "sft"\n[data]\ntrain = "train.jsonl"\nreward = "my_reward.py:score"\n'
    )
    numbered("train.jsonl", range(50))
    recipe = load_config("r.toml")
    check_tasks(recipe)
    assert len(list(islice(tasks_of(recipe, "train"), 3))) == 3
