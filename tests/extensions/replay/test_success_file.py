"""Which recorded successes a run takes from files, and what is refused before it starts."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config import parse_config
from asyncrl.data.table import TrajectoryTable
from asyncrl.errors import ConfigError
from asyncrl.extensions.curriculum.tasks import check_pool, plan_pool
from asyncrl.extensions.replay.success_file import check_recorded, recorded_problems, recorded_successes
from asyncrl.extensions.replay.success_pool import problem
from asyncrl.launch.checks.check import check_extensions
from asyncrl.types import FailureClass, Task
from tests.train.factories import group, trajectory


def recipe(complete_from, model="sft", **sections):
    return parse_config(
        {
            "model": {"path": str(model)},
            "env": {"name": "gridworld"},
            "algo": {"preset": "grpo"},
            "curriculum": {"name": "vade", "pool": 8},
            "train": {"complete_groups": True, "complete_from": str(complete_from)},
        }
        | sections
    )


def solved(name, seed, rewards=(0.0, 1.0), turns=2, **task):
    made = group(name, list(rewards), version=7, turns=turns)
    return replace(made, task=Task(name, "gridworld", seed, **task))


def run_with(folder, *groups, step=1, **changed):
    """A run's folder with these groups. changed: other sections of its configuration."""
    TrajectoryTable(folder / "trajectories").write(step, groups)
    (folder / "config.json").write_text(json.dumps(recipe("").model_dump(mode="json") | changed))
    return folder


def key(seed, **task):
    return problem(Task("", "gridworld", seed, **task))


def columns_but(folder, *left_out, **changed):
    """Write the folder's file again without columns, or with other values in its rows."""
    (file,) = (folder / "trajectories").glob("*.parquet")
    table = pq.read_table(file)
    for name, value in changed.items():
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.array([value] * table.num_rows, field.type))
    pq.write_table(table.drop_columns(list(left_out)), file)
    return folder


def test_the_shortest_success_of_each_problem_is_kept_as_it_was_sampled(tmp_path):
    long, short = solved("1-a", 1, turns=3), solved("2-a", 1)
    run = run_with(tmp_path / "old", long, short, solved("3-b", 2, (0.0, 0.0)), solved("4-c", 3, turns=3))
    found = recorded_successes(recipe(run))
    assert found.keys() == {key(1), key(3)}, "nobody solved the second"
    (kept,), success = found[key(1)].trajectories, short.trajectories[1]
    assert (kept.reward, kept.turns[1].reward, kept.components) == (1.0, 1.0, {"goal": 1.0, "form": 0.5})
    for name in ("token_ids", "loss_mask", "behavior_logprobs"):
        assert getattr(kept, name).tolist() == getattr(success, name).tolist()
    assert [(turn.start, turn.end) for turn in kept.turns] == [(6, 9), (14, 17)]
    assert kept.versions.tolist() == [0 if sampled else -1 for sampled in success.loss_mask]


def test_a_folder_of_files_and_one_file_are_taken_likewise(tmp_path):
    run = run_with(tmp_path / "old", solved("1-a", 1))
    run_with(tmp_path / "old", solved("2-b", 2), step=2)
    tables = run / "trajectories"
    assert recorded_problems(recipe(run)) == recorded_problems(recipe(tables)) == {key(1), key(2)}
    assert recorded_problems(recipe(tables / "step-000002.parquet")) == {key(2)}
    assert recorded_problems(recipe("")) == frozenset()


def test_tasks_that_are_whole_in_the_file_need_no_run_beside_it(tmp_path):
    data = {"goal": [1, 2]}
    TrajectoryTable(tmp_path).write(1, [solved("1-a", 1, data=data)])
    assert recorded_problems(recipe(tmp_path)) == {key(1, data=data)}
    TrajectoryTable(tmp_path).write(2, [solved("1-b", 2)])
    with pytest.raises(ConfigError, match=r"episode 1 of group 'g-1-b': its task is a seed alone"):
        recorded_problems(recipe(tmp_path))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda at: at / "nowhere", "there is no file or folder '.*nowhere'; give the folder of a run, or Parquet"),
        (lambda at: at, "has no Parquet files, nor has its trajectories/"),
        (lambda at: run_with(at, solved("a", 1, (0.0,))), "no success that could complete a group: no episode succ"),
        (
            lambda at: run_with(at, solved("a", 1), env={"name": "gridworld", "config": {"size": 9}}),
            "recorded with env.config={'size': 9}, and this run has {}",
        ),
        (
            lambda at: run_with(at, solved("a", 1), data={"reward": "math"}),
            "recorded with data.reward='math', and this run has ''",
        ),
        (
            lambda at: run_with(at, replace(solved("a", 1), task=Task("a", "countdown", 1))),
            "is of the environment 'countdown', and this run has env.name='gridworld'",
        ),
        (lambda at: columns_but(run_with(at, solved("a", 1)), "behavior_logprobs"), "no column behavior_logprobs"),
        (
            lambda at: columns_but(run_with(at, solved("a", 1)), behavior_logprobs=None),
            "episode 1 of group 'g-a': has no behavior_logprobs, without which it cannot be trained as it was sampled",
        ),
        (lambda at: columns_but(run_with(at, solved("a", 1)), token_ids=None), "has no token_ids"),
        (
            lambda at: columns_but(run_with(at, solved("a", 1)), behavior_logprobs=[-1.0]),
            "trajectory.behavior_logprobs must have 17 items like token_ids, got 1",
        ),
        (
            lambda at: columns_but(run_with(at, solved("a", 1)), behavior_logprobs=[float("nan")] * 17),
            "trajectory.behavior_logprobs must be finite and at most 0",
        ),
        (lambda at: columns_but(run_with(at, solved("a", 1)), turn_end=[99, 100]), "trajectory.turns.0..end must"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_by_file_and_row(tmp_path, made, message):
    path = made(tmp_path)
    with pytest.raises(ConfigError, match=f"^train.complete_from: .*{message}"):
        check_recorded(recipe(path), alone=True)


def test_a_damaged_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"train.complete_from: .*x.parquet: cannot be read"):
        recorded_problems(recipe(tmp_path))


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path):
    run, model = run_with(tmp_path / "old", solved("a", 1)), tmp_path / "model"
    model.mkdir()
    highest = int(trajectory("a", 1).token_ids.max())
    (model / "config.json").write_text(json.dumps({"vocab_size": highest}))
    with pytest.raises(
        ConfigError, match=f"token_ids must be below {highest}, the model's vocabulary, got {highest}"
    ):
        recorded_problems(recipe(run, model))
    (model / "config.json").write_text(json.dumps({"vocab_size": highest + 1}))
    assert recorded_problems(recipe(run, model)) == {key(1)}


def test_what_is_left_out_is_told_where_nothing_is_left(tmp_path):
    short = {"engine": {"max_model_len": 16}, "rollout": {"max_tokens_per_turn": 8}}
    part = replace(
        solved("b", 2), trajectories=(replace(trajectory("b", 1, reward=1.0), info={"rollout": 1}),)
    )
    failed = replace(
        solved("c", 3), trajectories=(trajectory("c", 0, reward=1.0, failure=FailureClass.AGENT),)
    )
    run = run_with(tmp_path / "old", solved("a", 1), part, failed, solved("d", 4, turns=3))
    assert recorded_problems(recipe(run)) == {key(1), key(4)}
    with pytest.raises(ConfigError, match=r"3 of more than engine\.max_model_len=16 tokens"):
        recorded_problems(recipe(run, **short))


def test_one_of_the_problems_must_be_a_task_of_the_run_and_the_buffer_is_told_which_are(tmp_path):
    tasks = plan_pool(recipe("")).tasks
    run = run_with(tmp_path / "old", solved("a", tasks[3].seed), solved("b", 10**9))
    check_extensions(recipe(run))
    assert plan_pool(recipe(run))._solved == [3]
    strange = run_with(tmp_path / "strange", solved("b", 10**9))
    with pytest.raises(ConfigError, match="none of the 1 problems solved there is one of this run's 8 tasks"):
        check_pool(recipe(strange), alone=True)
