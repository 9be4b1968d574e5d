"""The tasks of a run reach the buffer ahead of need, in order, and the plan closes after the last."""

import asyncio
import json
from itertools import islice

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.curriculum.tasks import pool_of
from asyncrl.launch.checks.check import check_extensions
from asyncrl.tasks.plans import plan_tasks
from asyncrl.tasks.tasks import TaskPlan
from asyncrl.types import Task


class Buffer:
    def __init__(self):
        self.tasks, self.taken, self.closed = [], 0, False

    async def status(self):
        return {"pending": len(self.tasks) - self.taken, "plan_closed": self.closed}

    async def add_tasks(self, tasks):
        assert not self.closed
        new = [task for task in tasks if task not in self.tasks]
        self.tasks += new
        return len(new)

    async def close_plan(self):
        self.closed = True


def config(**env):
    return parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld", **env}, "buffer": {"groups_per_step": 2}}
    )


def feed(plan, buffer, take=0):
    buffer.taken += take
    asyncio.run(plan.feed(buffer))
    return len(buffer.tasks)


def test_an_endless_plan_is_topped_up_when_it_runs_low_and_never_closes():
    buffer, plan = Buffer(), plan_tasks(config())
    assert [feed(plan, buffer), feed(plan, buffer), feed(plan, buffer, take=1)] == [8, 8, 16]
    assert not buffer.closed
    ids = [task.id for task in buffer.tasks]
    assert ids == sorted(ids)
    assert len(set(ids)) == 16
    assert ids[0] == "00000000-train-0"


def test_a_counted_plan_closes_after_its_last_task():
    buffer, plan = Buffer(), plan_tasks(config(num_tasks=11))
    assert [feed(plan, buffer), feed(plan, buffer, take=8), feed(plan, buffer, take=3)] == [8, 11, 11]
    assert buffer.closed


def test_a_plan_that_starts_over_adds_only_tasks_that_the_buffer_lacks():
    buffer = Buffer()
    feed(plan_tasks(config(num_tasks=40)), buffer)
    feed(plan_tasks(config(num_tasks=40)), buffer, take=8)
    # The 8 that are known, and the next 16.
    assert [int(task.id[:8]) for task in buffer.tasks] == list(range(24))
    assert feed(plan_tasks(config(num_tasks=40)), buffer, take=16) == 40
    assert buffer.closed
    assert feed(plan_tasks(config(num_tasks=40)), buffer, take=4) == 40


def test_a_plan_that_starts_over_finds_the_place_where_it_was_in_few_calls():
    class Counting(Buffer):
        calls = 0

        async def add_tasks(self, tasks):
            self.calls += 1
            return await super().add_tasks(tasks)

    def numbered():
        return (Task(f"t{i}", "gridworld") for i in range(2000))

    buffer = Counting()
    buffer.tasks, buffer.taken = list(numbered())[:1000], 1000
    assert feed(TaskPlan(numbered(), total=2000, chunk=8), buffer) > 1000
    # 8 + 16 + ... + 1024 are more than a thousand.
    assert buffer.calls == 7
    assert buffer.tasks == list(numbered())[: len(buffer.tasks)]


def test_runs_that_train_one_policy_share_the_tasks():
    def planned(recipe, **outer):
        plan = plan_tasks(parse_config(recipe.model_dump(mode="json") | {"outer": outer}, strict=False))
        return [task.id for task in (islice(plan._tasks, 9) if isinstance(plan, TaskPlan) else plan.tasks)]

    for recipe in (config(), curriculum(pool=8)):
        shares = [planned(recipe, members=3, member=member)[:3] for member in range(3)]
        assert shares == [planned(recipe)[member:9:3] for member in range(3)]


def test_a_list_that_runs_out_closes_the_plan():
    tasks = iter([Task(f"t{i}", "gridworld") for i in range(3)])
    buffer, plan = Buffer(), TaskPlan(tasks, total=0, chunk=8)
    assert feed(plan, buffer) == 3
    assert buffer.closed


def test_tasks_of_a_file_keep_their_order_and_data(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        "\n".join(json.dumps({"id": f"q{i}", "seed": i, "data": {"n": i}}) for i in range(3)) + "\n"
    )
    buffer = Buffer()
    feed(plan_tasks(config(task_file=str(path))), buffer)
    assert [(t.id, t.env, t.seed, t.data) for t in islice(buffer.tasks, 3)] == [
        (f"q{i}", "gridworld", i, {"n": i}) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b", ', "line 2: "),
        ('{"id": "b", "sead": 3}', r"line 2: unknown key 'sead'; allowed: data, id, seed, split"),
        ('{"id": "b", "seed": "x"}', "line 2: seed: must be an integer, got 'x'"),
        ('{"seed": 1}', "line 2: id: must be a string or number, got None"),
        ('{"id": "a"}', "line 2: id 'a' stands on line 1 already"),
    ],
)
def test_a_broken_line_is_refused_by_file_and_number(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"id": "a"}}\n{line}\n')
    with pytest.raises(InputError, match=f"tasks.jsonl, {message}"):
        plan_tasks(config(task_file=str(path)))


def test_a_missing_task_file_is_refused_by_path(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot be read"):
        plan_tasks(config(task_file=str(tmp_path / "nowhere.jsonl")))


class PoolBuffer:
    def __init__(self):
        self.given = []

    async def tell(self, route, body):
        self.given.append((route, body["tasks"], body["total"]))
        return {"added": len(body["tasks"])}


def curriculum(name="uniform", pool=3, **env):
    recipe = config(**env).model_dump(mode="json")
    return parse_config(recipe | {"curriculum": {"name": name, "pool": pool}}, strict=False)


def test_a_curriculum_gets_its_pool_once_instead_of_tasks_in_order():
    buffer, plan = PoolBuffer(), plan_tasks(curriculum(num_tasks=20))
    for _ in range(3):
        asyncio.run(plan.feed(buffer))
    ((route, tasks, total),) = buffer.given
    assert [task["id"] for task in tasks] == ["train-0", "train-2", "train-4"]
    assert (route, total) == ("/v1/pool", 20)


def test_a_curriculum_chooses_among_all_tasks_of_a_file(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"id": f"q{i}"}) for i in range(5)))
    assert [task.id for task in pool_of(curriculum(task_file=str(path)))] == [f"q{i}" for i in range(5)]


def test_tasks_that_a_curriculum_cannot_choose_among_are_refused_before_the_run():
    with pytest.raises(InputError, match="task 'train-0': curriculum 'staged' needs a whole number"):
        check_extensions(curriculum("staged"))
    check_extensions(curriculum("vade"))
    check_extensions(config())


def test_several_policies_have_no_curriculum():
    recipe = curriculum("vade").model_dump(mode="json") | {"policies": {"b": {"agents": ["b"]}}}
    with pytest.raises(ConfigError, match=r"curriculum.name must be left out where there are policies"):
        parse_config(recipe, strict=False)
