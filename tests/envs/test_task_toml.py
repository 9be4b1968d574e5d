"""What a task.toml says, what of it is refused, and which hosts are left of the recipe's."""

from pathlib import Path

import pytest

from asyncrl.envs.terminal.env import Terminal
from asyncrl.envs.terminal.task_toml import (
    MOST_STORAGE_BYTES,
    Network,
    read_steps,
    read_strategy,
    read_task_toml,
)
from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import MIB
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, shell, shown, write_task

HERE = Path("/tasks/t")


def read(**sections):
    return read_task_toml(sections, HERE)


def make(folder, **config):
    task = Task("t", "terminal", 0, "train", {"folder": str(folder / "t")})
    return Terminal(task, folder=str(folder), **config)


def test_times_sizes_and_variables_are_what_the_file_says():
    found = read(
        environment={
            "docker_image": "i", "workdir": "/srv", "memory_mb": 2048, "storage": "1.5G", "build_timeout_sec": 90.0,
            "env": {"A": "b"},
        },
        verifier={"timeout_sec": 900, "env": {"C": "d"}},
        agent={"timeout_sec": 5.0},
        metadata={"difficulty": "hard"},
    )  # fmt: skip
    assert (found.docker_image, found.workdir, found.env, found.test_env) == (
        "i",
        "/srv",
        {"A": "b"},
        {"C": "d"},
    )
    assert (found.memory_bytes, found.storage_bytes) == (2048 * MIB, 1536 * MIB)
    assert (found.build_timeout_s, found.said_timeout_s, found.verifier_timeout_s) == (90.0, 900.0, 900.0)


def test_a_file_that_says_nothing_leaves_the_defaults():
    found = read()
    assert (found.said_timeout_s, found.verifier_timeout_s, found.build_timeout_s) == (0.0, 60.0, 600.0)
    assert (found.memory_bytes, found.storage_bytes, found.network) == (0, 0, Network())


def test_more_storage_than_a_session_may_hold_in_memory_is_cut():
    assert read(environment={"storage_mb": 10_240}).storage_bytes == MOST_STORAGE_BYTES


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"environment": {"os": "Windows"}}, "environment.os"),
        ({"environment": {"gpus": 1}}, "environment.gpus"),
        ({"environment": {"mcp_servers": [{"name": "x"}]}}, "environment.mcp_servers"),
        ({"environment": {"healthcheck": {"command": "true"}}}, "environment.healthcheck"),
        ({"verifier": {"environment": {"gpus": 1}}}, r"verifier\.environment\.gpus"),
        (
            {"verifier": {"environment": {"healthcheck": {"command": "true"}}}},
            r"verifier\.environment\.healthcheck",
        ),
    ],
)
def test_what_would_make_another_task_of_it_is_refused_by_name(sections, key):
    with pytest.raises(ConfigError, match=rf"terminal task /tasks/t: task\.toml: {key} is not followed"):
        read(**sections)


@pytest.mark.parametrize(
    ("step", "key"),
    [
        ({"healthcheck": {"command": "true"}}, "healthcheck"),
        ({"verifier": {"environment": {"memory_mb": 1}}}, r"verifier\.environment"),
        ({"verifier": {"network_mode": "public"}}, r"verifier\.network_mode"),
        ({"agent": {"allowed_hosts": ["a"]}}, r"agent\.allowed_hosts"),
        ({"of_tomorrow": 1}, "of_tomorrow"),
    ],
)
def test_what_would_make_another_step_of_it_is_refused_by_name(step, key):
    with pytest.raises(
        ConfigError, match=rf"terminal task /tasks/t: task\.toml: steps\.one\.{key} is not followed"
    ):
        read_steps({"steps": [{"name": "one", **step}]}, Path("/tasks/t"))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"steps": {"name": "one"}}, "steps: must be a list of tables"),
        ({"steps": [{}]}, "steps.name: must be the name of a folder below steps/, got 'None'"),
        ({"steps": [{"name": "../x"}]}, "steps.name: must be the name of a folder below steps/, got '../x'"),
        ({"steps": [{"name": ".."}]}, "steps.name: must be the name of a folder"),
        ({"steps": [{"name": "a"}, {"name": "A"}]}, "steps.name: must be another one for each step, got 'A'"),
        ({"steps": [{"name": "a", "min_reward": 2}]}, "steps.a.min_reward: must be a number from 0 to 1"),
        (
            {"steps": [{"name": "a", "min_reward": {"style": 0.5}}]},
            "steps.a.min_reward: .*no other reward is read",
        ),
        ({"steps": [{"name": "a", "verifier": 3}]}, "steps.a.verifier: must be a table"),
        ({"steps": [{"name": "a", "artifacts": "x"}]}, "artifacts: must be a list"),
        (
            {"steps": [{"name": "a", "verifier": {"timeout_sec": "x"}}]},
            "verifier.timeout_sec: must be seconds",
        ),
    ],
)
def test_a_wrong_step_is_named_with_what_it_must_be(said, problem):
    with pytest.raises(ConfigError, match=problem):
        read_steps({"verifier": {"environment_mode": "separate"}, **said}, Path("/tasks/t"))


def test_a_step_has_what_the_task_says_of_its_tests_with_its_own_over_it():
    (one, two) = read_steps(
        {
            "verifier": {"timeout_sec": 5, "env": {"A": "1", "B": "2"}},
            "steps": [
                {"name": "one"},
                {
                    "name": "two",
                    "min_reward": {"reward": 1},
                    "verifier": {"timeout_sec": 7, "env": {"B": "3"}},
                },
            ],
        },
        Path("/tasks/t"),
    )
    assert (one.toml.said_timeout_s, one.toml.test_env, one.min_reward) == (5.0, {"A": "1", "B": "2"}, None)
    assert (two.toml.said_timeout_s, two.toml.test_env, two.min_reward) == (7.0, {"A": "1", "B": "3"}, 1.0)


def test_the_strategy_of_steps_is_mean_or_final():
    assert read_strategy({}, Path("t")) == "mean"
    assert read_strategy({"multi_step_reward_strategy": "final"}, Path("t")) == "final"
    with pytest.raises(ConfigError, match="multi_step_reward_strategy: must be mean or final, got 'best'"):
        read_strategy({"multi_step_reward_strategy": "best"}, Path("t"))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"environment": "x"}, "environment: must be a table, got 'x'"),
        ({"environment": {"memory_mb": "2G"}}, "environment.memory_mb: must be a whole number, got '2G'"),
        ({"environment": {"storage": "much"}}, "environment.storage: must be a size such as"),
        ({"verifier": {"timeout_sec": -1}}, "verifier.timeout_sec: must be seconds, got '-1'"),
        ({"verifier": {"env": {"KEY": "${KEY}"}}}, "verifier.env.KEY: must be the value itself"),
        ({"environment": {"env": {"N": 3}}}, "environment.env: must be a table of texts"),
        ({"agent": {"network_mode": "some"}}, "agent.network_mode: must be public, allowlist or no-network"),
        ({"verifier": {"environment_mode": "own"}}, "verifier.environment_mode: must be shared or separate"),
        (
            {"verifier": {"environment_mode": "shared", "environment": {}}},
            "verifier.environment_mode: must be separate where verifier.environment is given",
        ),
        (
            {"verifier": {"collect": [{"command": "x", "service": "db"}]}},
            "verifier.collect: service 'db' is not",
        ),
        ({"verifier": {"collect": ["x"]}}, "verifier.collect: must be a table with command"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(sections, problem):
    with pytest.raises(ConfigError, match=problem):
        read(**sections)


def test_a_phase_has_the_environments_network_unless_it_names_its_own():
    found = read(
        environment={"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]},
        agent={"network_mode": "no-network"},
    )
    assert found.network == Network("no-network")
    assert found.test_network == Network("allowlist", ("pypi.org",))
    assert read(environment={"allow_internet": False}).test_network == Network("no-network")


def test_hosts_are_those_that_both_the_recipe_and_the_task_allow():
    recipes = ("pypi.org", "a.example.org:8080", "other.net")
    assert Network().narrowed(recipes) == recipes
    assert Network("no-network").narrowed(recipes) == ()
    assert Network("allowlist", ("PyPI.org", "*.example.org")).narrowed(recipes) == recipes[:2]


def test_variables_of_a_task_reach_its_programs_and_those_of_its_tests_the_tests_alone(tmp_path):
    folder = write_task(tmp_path / "t", 'test "$SHARED$SECRET" = onetwo')
    (folder / "t" / "task.toml").write_text(
        '[environment]\nenv = {SHARED = "one"}\n[verifier]\nenv = {SECRET = "two"}\n'
    )
    first, last = play(make(folder), shell("echo $SHARED-$SECRET"), DONE)
    assert (shown(first), last.reward) == (["one-"], 1.0)


def test_a_session_has_the_disk_that_its_task_says(tmp_path):
    folder = write_task(tmp_path / "t", 'test "$(stat -c %s /app/big)" = 150000000')
    (folder / "t" / "task.toml").write_text("[environment]\nstorage_mb = 200\n")
    steps = play(make(folder), shell("head -c 150000000 /dev/zero > big"), DONE)
    assert steps[-1].reward == 1.0
    (folder / "t" / "task.toml").write_text("")
    assert play(make(folder), shell("head -c 150000000 /dev/zero > big"), DONE)[-1].reward == 0.0


def test_a_task_without_a_network_has_none_whatever_the_recipe_allows(tmp_path):
    folder = write_task(tmp_path / "t", "true")
    (folder / "t" / "task.toml").write_text('[environment]\nnetwork_mode = "no-network"\n')
    spec = make(folder, allow_hosts=["a.org"], test_hosts=["b.org"]).spec
    assert (spec.allow_hosts, spec.judge_hosts) == ((), None)
    (folder / "t" / "task.toml").write_text('[agent]\nnetwork_mode = "no-network"\n')
    spec = make(folder, allow_hosts=["a.org"], test_hosts=["b.org"]).spec
    assert (spec.allow_hosts, spec.judge_hosts) == ((), ("a.org", "b.org"))
