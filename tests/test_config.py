"""Recipes are read strictly: every refusal names the key, the value and what is allowed."""

from pathlib import Path

import pytest

from asyncrl.config import known_recipes, load_config, parse_config
from asyncrl.errors import ConfigError

MINIMAL = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def changed(section, **values):
    return {**MINIMAL, section: {**MINIMAL.get(section, {}), **values}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("train", num_step=1), r"train.num_step: unknown key; did you mean 'num_steps'\?"),
        (changed("train", num_steps="ten"), 'train.num_steps: input should be a valid integer, got "ten"'),
        (changed("train", num_steps=0), "train.num_steps: input should be greater than or equal to 1, got 0"),
        (changed("train", zero_stage=4), "train.zero_stage: input should be 0, 1, 2 or 3, got 4"),
        (changed("buffer", max_staleness=-1), "buffer.max_staleness: .* got -1"),
        (changed("buffer", drop_no_signal=1), "buffer.drop_no_signal: .* got 1"),
        ({"env": {"name": "gridworld"}}, "model: missing"),
        (
            changed("rollout", max_tokens=4096),
            "max_tokens must be at most engine.max_model_len=2048, got 4096",
        ),
        (changed("sft", num_heads=8), "multiple of 32, .* got 128 / 8"),
        (
            {**MINIMAL, "env": {"name": "agent"}, "judge": {"url": "http://127.0.0.1:1"}},
            "judge.url must be left out for env.name='agent', .* got 'http://127.0.0.1:1'",
        ),
        ({**MINIMAL, "trian": {}}, "trian: unknown key; did you mean 'train'"),
    ],
)
def test_wrong_values_are_refused_by_name(data, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(data)


def test_overrides_take_toml_values_and_bare_words():
    config = load_config("gridworld_grpo", ["train.num_steps=3", "run.name=mine", "engine.extra_args=['-x']"])
    assert (config.train.num_steps, config.run.name, config.engine.extra_args) == (3, "mine", ["-x"])


@pytest.mark.parametrize("override", ["train.num_steps", "=3", "train.num_steps.x=1"])
def test_a_malformed_override_is_refused(override):
    with pytest.raises(ConfigError, match="override"):
        load_config("gridworld_grpo", [override])


@pytest.mark.parametrize("recipe", ["gridworld_grpo", "calculator_grpo", "math_qwen3_grpo"])
def test_every_recipe_resolves_and_its_objective_is_valid(recipe):
    from asyncrl.algo.settings import check
    from asyncrl.env.registry import load_env

    config = load_config(recipe)
    check(config.algo)
    assert load_env(config.env.name)


def test_an_unknown_recipe_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"did you mean 'gridworld_grpo'\? Recipes: .*sql_grpo"):
        load_config("gridword_grpo")


def test_derived_values_follow_from_the_others():
    config = parse_config(changed("buffer", max_staleness=2, groups_per_step=4))
    assert (config.slots, config.deterministic, config.max_tokens) == (12, False, 2048)
    assert parse_config(changed("buffer", max_staleness=0)).deterministic


@pytest.mark.parametrize(
    ("schedule", "bound"),
    [("synchronous", 0), ("periodic", 0), ("one_step_off", 1), ("asynchronous", 1), ("partial", 1)],
)
def test_a_schedule_brings_its_staleness_bound(schedule, bound):
    data = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": {"schedule": schedule}}
    assert parse_config(data).buffer.max_staleness == bound


def test_a_staleness_bound_that_the_schedule_does_not_have_is_refused():
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "train": {"schedule": "periodic"}}
    with pytest.raises(
        ConfigError, match=r"buffer.max_staleness must be 0 under train.schedule='periodic'.*got 2"
    ):
        parse_config(data | {"buffer": {"max_staleness": 2}})
    free = data | {"train": {"schedule": "asynchronous"}, "buffer": {"max_staleness": 4}}
    assert parse_config(free).buffer.max_staleness == 4


@pytest.mark.parametrize("section", [{"token_budget": 100}, {"recycle": False}])
@pytest.mark.parametrize("schedule", ["synchronous", "periodic", "one_step_off"])
def test_steps_of_one_version_are_whole_batches(schedule, section):
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "buffer": section}
    with pytest.raises(
        ConfigError, match=rf"buffer.{next(iter(section))} must be left out under .*{schedule}"
    ):
        parse_config(data | {"train": {"schedule": schedule}})
    assert parse_config(data | {"buffer": section | {"over_provision": 15}}).buffer.max_staleness == 1


def test_a_token_budget_needs_fewer_groups_in_flight_than_the_bound_admits():
    data = {"model": {"path": "m"}, "env": {"name": "e"}}
    for beyond in ({}, {"over_provision": 16}):
        with pytest.raises(
            ConfigError, match=r"buffer.over_provision must be below .* = 16 for a token_budget"
        ):
            parse_config(data | {"buffer": {"token_budget": 100} | beyond})


@pytest.mark.parametrize("value", ["soon", -1, True, 0.5])
def test_groups_beyond_a_step_are_a_number_or_auto(value):
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "buffer": {"over_provision": value}}
    with pytest.raises(
        ConfigError, match=r"buffer.over_provision: must be a whole number from 0 on, or \"auto\""
    ):
        parse_config(data)


def test_over_provisioning_limits_what_is_in_flight():
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "rollout": {"workers": 2}}
    buffer = {"groups_per_step": 8, "max_staleness": 2}
    assert parse_config(data | {"buffer": buffer}).slots == 24
    config = parse_config(data | {"buffer": buffer | {"over_provision": 4}})
    assert (config.slots, config.groups_in_flight) == (12, 6)
    assert parse_config(data | {"buffer": buffer | {"over_provision": "auto"}}).slots == 24


RECIPE = """
[model]
path = "base"
[env]
name = "my_env.py:Mine"
task_file = "tasks.jsonl"
config = { folder = "./tasks", command = ["python", "../agent.py"], reward = "rewards.py:mine", game = "tasks" }
limits = { "my_env.py:Mine" = 4 }
[run]
python_path = ["lib"]
folder = "./runs"
[policies.other]
agents = ["b"]
model = { path = "base" }
"""


def test_a_recipe_names_files_relative_to_itself_and_the_command_line_to_the_current_folder(
    tmp_path, monkeypatch
):
    for folder in ("here", "recipe/base"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "recipe" / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config("../recipe", ["critic.path=gone", "algo.loss=my_loss.py:mine"])
    beside = str(tmp_path / "recipe")
    assert config.model.path == config.policies["other"].model["path"] == f"{beside}/base"
    assert config.env.name == f"{beside}/my_env.py:Mine"
    assert config.env.task_file == f"{beside}/tasks.jsonl"
    assert config.env.config == {
        "folder": f"{beside}/tasks", "command": ["python", f"{tmp_path}/agent.py"],
        "reward": f"{beside}/rewards.py:mine", "game": "tasks",
    }  # fmt: skip
    assert config.run.python_path == [f"{beside}/lib", f"{tmp_path}/here"]
    assert config.env.limits == {config.env.name: 4}
    assert config.run.folder == "./runs"
    assert config.critic.path == "gone"
    assert config.algo["loss"] == f"{tmp_path}/here/my_loss.py:mine"


@pytest.mark.parametrize("text", ["{size = 4}", '{"size": 4}', '{"size":4}'])
def test_tables_on_the_command_line_are_toml_or_json(text):
    assert load_config("gridworld_grpo", [f"env.config={text}"]).env.config == {"size": 4}


def test_a_broken_table_on_the_command_line_says_how_it_is_written():
    with pytest.raises(ConfigError, match=r"neither TOML \(\{a = 1\}\) nor JSON \(\{\"a\": 1\}\)"):
        load_config("gridworld_grpo", ["env.config={size: 4}"])
    assert load_config("gridworld_grpo", ["judge.model=my-judge"]).judge.model == "my-judge"


def test_packaged_recipes_are_found_from_anywhere_and_a_local_one_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = load_config("gridworld_grpo")
    assert packaged.env.name == "gridworld"
    local = tmp_path / "recipes" / "gridworld_grpo"
    local.mkdir(parents=True)
    (local / "recipe.toml").write_text('[model]\npath = "sft"\n[env]\nname = "sql"\n')
    assert load_config("gridworld_grpo").env.name == "sql"
    assert known_recipes()["gridworld_grpo"] == Path("recipes/gridworld_grpo/recipe.toml")
