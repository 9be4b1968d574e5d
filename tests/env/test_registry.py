"""Finding environments and reading task files."""

import pytest

from asyncrl.env.registry import ENVS, load_env
from asyncrl.env.tasks import read_task_file
from asyncrl.errors import ConfigError, InputError


@pytest.mark.parametrize("name", sorted(ENVS))
def test_every_registered_environment_loads(name):
    assert load_env(name).__doc__


def test_a_misspelled_name_is_refused_with_the_nearest_and_all_names():
    with pytest.raises(ConfigError, match=r"unknown environment 'gridwrld'; did you mean 'gridworld'\?"):
        load_env("gridwrld")


def test_an_import_path_loads_and_a_wrong_one_says_why():
    assert load_env("asyncrl.envs.gridworld.env:Gridworld").__name__ == "Gridworld"
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_env("no_such_module:Env")
    with pytest.raises(ConfigError, match="not a subclass"):
        load_env("asyncrl.types:Task")


def test_a_task_file_gives_its_tasks_in_order(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "seed": 3}\n\n{"id": "b", "data": {"x": 1}}\n')
    tasks = read_task_file(path, "gridworld")
    assert [(t.id, t.seed, t.data, t.env) for t in tasks] == [
        ("a", 3, {}, "gridworld"),
        ("b", 0, {"x": 1}, "gridworld"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "line 2: "),
        ('{"seed": 1}', "line 2: id: must be"),
        ('{"id": "a"}', "line 2: id 'a' stands on line 1"),
        ('{"id": "b", "sed": 1}', "line 2: unknown key 'sed'"),
        ('{"id": "b", "seed": "x"}', "line 2: seed: must be an integer, got 'x'"),
        ("[]", "line 2: must be an object"),
    ],
)
def test_a_broken_line_is_refused_with_file_and_line(tmp_path, line, problem):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=problem):
        read_task_file(path, "gridworld")


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_task_file(tmp_path / "none.jsonl", "gridworld")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="holds no task"):
        read_task_file(tmp_path / "empty.jsonl", "gridworld")
