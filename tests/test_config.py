"""Recipes are read strictly: every refusal names the key, the value and what is allowed."""

import json
import re
from pathlib import Path

import pytest

from asyncrl import gpus
from asyncrl.algo.settings import resolve_settings
from asyncrl.config import (
    PACKAGED_RECIPES,
    known_recipes,
    load_config,
    parse_config,
    with_files_in,
)
from asyncrl.env.registry import load_env
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
        (changed("sft", hidden_size=80), "sft.hidden_size: input should be a multiple of 32, got 80"),
        (
            {**MINIMAL, "env": {"name": "agent"}, "judge": {"url": "http://127.0.0.1:1"}},
            "judge.url must be left out for env.name='agent', .* got 'http://127.0.0.1:1'",
        ),
        (
            {**MINIMAL, "engine": {"keep_kv": True}, "train": {"schedule": "asynchronous"}},
            "engine.keep_kv must be false where .* train.schedule is 'asynchronous': .* got true",
        ),
        (
            {**MINIMAL, "engine": {"keep_kv": True}, "train": {"commitments": True}},
            "engine.keep_kv must be false for train.commitments=true: states over an older cache",
        ),
        (
            {**MINIMAL, "train": {"commitments": True, "max_logp_error": 0}},
            "train.max_logp_error must be above 0 for train.commitments=true: both are checked in one pass",
        ),
        (
            {**MINIMAL, "engine": {"keep_kv": True}, "train": {"router_replay": True}},
            "engine.keep_kv must be false for train.router_replay=true: kept blocks",
        ),
        (
            {**MINIMAL, "engine": {"speculative": {"method": "ngram"}}, "train": {"router_replay": True}},
            "engine.speculative.method must be 'off' for train.router_replay=true",
        ),
        (
            changed("outer", url="host:8000"),
            'outer.url: must begin with http:// or https://, got "host:8000"',
        ),
        (changed("outer", member=2, members=2), "outer: member: must be below members=2, got 2"),
        (changed("outer", fragments=9), "outer: fragments: must be at most every=8, got 9"),
        (changed("outer", delay=8), "outer: delay: must be below every=8, got 8"),
        (changed("outer", mix=0.5), "outer: mix: must be 0 without a delay, got 0.5"),
        (
            changed("outer", method="gossip", members=4, learning_rate=0.7, momentum=0.9),
            "outer: learning_rate: must be below 0.38 with method='gossip', members=4 and momentum=0.9, .* got 0.7",
        ),
        (changed("outer", method="ring"), "outer.method: input should be 'mean' or 'gossip', got \"ring\""),
        (
            {**changed("outer", url="http://o"), "policies": {"other": {"agents": ["a"]}}},
            "outer.url must be left out where there are further policies, got 'http://o'",
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


def test_the_type_of_the_weights_follows_the_machine_unless_it_is_given(monkeypatch):
    def dtypes():
        given = [{}, {"dtype": "auto"}, {"dtype": "float32"}]
        return [parse_config(changed("model", **one)).model.dtype for one in given]

    assert dtypes() == ["float32", "float32", "float32"]
    monkeypatch.setattr(gpus, "found_gpus", lambda: ("0",))
    assert dtypes() == ["bfloat16", "bfloat16", "float32"]
    # A run keeps what it was started with.
    recorded = parse_config(MINIMAL).model_dump(mode="json")
    monkeypatch.setattr(gpus, "found_gpus", tuple)
    assert parse_config(recorded, strict=False).model.dtype == "bfloat16"


@pytest.mark.parametrize("override", ["train.num_steps", "=3", "train.num_steps.x=1"])
def test_a_malformed_override_is_refused(override):
    with pytest.raises(ConfigError, match="override"):
        load_config("gridworld_grpo", [override])


PACKAGED = sorted(path.parent.name for path in PACKAGED_RECIPES.glob("*/recipe.toml"))


@pytest.mark.parametrize("recipe", PACKAGED)
def test_every_recipe_resolves(recipe):
    config = load_config(PACKAGED_RECIPES / recipe)
    settings = resolve_settings(config.algo)
    assert settings["loss"]["name"] and load_env(config.env.name)
    assert config.max_tokens >= config.rollout.max_tokens_per_turn
    real = {
        **dict.fromkeys(("smollm2_svamp", "smollm2_gsm8k"), "smollm2-135m"),
        **dict.fromkeys(("codex_grpo", "claude_code_grpo", "opencode_grpo"), "Qwen/Qwen3-8B"),
    }
    if re.search(r"\d+gb", recipe):
        assert re.fullmatch(r"Qwen/Qwen(3|2\.5)-[\d.]+B(-Instruct)?", config.model.path)
        assert config.model.dtype == "bfloat16" and config.train.betas == (0.9, 0.95)
    elif recipe in real:
        betas = (0.9, 0.99) if recipe.startswith("smollm2") else (0.9, 0.95)
        assert (config.model.path, config.train.betas) == (real[recipe], betas)
    else:
        assert config.model.path == "sft"
        assert (config.train.betas, config.run.threads) == ((0.9, 0.999), 1)
        assert config.engine.extra_args == []
        # Of all these recipes one learns more from the groups that are still undecided alone.
        assert config.no_signal == {"rewards"}


def test_there_are_as_many_recipes_as_folders_with_a_page():
    assert sorted(path.parent.name for path in PACKAGED_RECIPES.glob("*/README.md")) == PACKAGED
    assert len(PACKAGED) >= 22


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


def test_a_runs_configuration_that_was_checked_is_read_without_what_its_sections_exclude(tmp_path):
    """The launcher has asked every feature before it started the process that reads it."""
    path = tmp_path / "config.json"
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "train": {"schedule": "synchronous"}}
    path.write_text(json.dumps(data | {"buffer": {"token_budget": 100}}))
    with pytest.raises(ConfigError, match=r"buffer.token_budget must be left out under"):
        load_config(path)
    assert load_config(path, checked=True).buffer.token_budget == 100
    path.write_text(json.dumps(data | {"buffer": {"token_budget": "x"}}))
    with pytest.raises(ConfigError, match="token_budget"):
        load_config(path, checked=True)


def test_a_token_budget_needs_fewer_groups_in_flight_than_the_bound_admits():
    data = {"model": {"path": "m"}, "env": {"name": "e"}}
    for beyond in ({}, {"over_provision": "all"}, {"over_provision": 16}):
        with pytest.raises(
            ConfigError, match=r"buffer.over_provision must be below .* = 16 for a token_budget"
        ):
            parse_config(data | {"buffer": {"token_budget": 100} | beyond})


@pytest.mark.parametrize("value", ["soon", -1, True, 0.5, None])
def test_groups_beyond_a_step_are_a_number_or_auto(value):
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "buffer": {"over_provision": value}}
    with pytest.raises(
        ConfigError, match=r"buffer.over_provision: must be a whole number from 0 on, \"auto\" or \"all\""
    ):
        parse_config(data)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"scale": {"rollout": [2, 4]}},
            r"rollout.workers must be within scale.rollout=\[2, 4\], got 1",
        ),
        (
            {"scale": {"env": [1, 2]}, "env": {"name": "e", "services": 3}},
            r"env.services must be within scale.env=\[1, 2\], got 3",
        ),
        ({"scale": {"engine": [3, 1]}}, r"scale.engine: must be \[least, most\] with 1 <= least <= most"),
        ({"scale": {"engine": [2]}}, r"scale.engine: must be \[least, most\]"),
        (
            {
                "scale": {"engine": [1, 2]},
                "placement": {"sleep": True},
                "train": {"schedule": "synchronous"},
            },
            "scale.engine must be left out for placement.sleep=true",
        ),
        (
            {"scale": {"rollout": [1, 2]}, "policies": {"other": {"agents": ["b"]}}},
            r"scale.rollout must be left out where there are further policies, got \[1, 2\]",
        ),
    ],
)
def test_limits_of_processes_that_cannot_be_kept_are_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": {"path": "m"}, "env": {"name": "e"}} | sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"scale": {"engine": [1, 3]}},
            "scale.engine must be left out where there are further policies",
        ),
        (
            {"placement": {"sleep": True}, "train": {"schedule": "synchronous"}},
            "placement.sleep must be false or 'auto' where there are policies",
        ),
    ],
)
def test_what_further_policies_exclude_is_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(
            {"model": {"path": "m"}, "env": {"name": "e"}, "policies": {"other": {"agents": ["b"]}}}
            | sections
        )


def test_a_worker_plays_its_share_by_the_most_workers_there_may_be():
    data = {
        "model": {"path": "m"},
        "env": {"name": "e"},
        "buffer": {"groups_per_step": 5, "max_staleness": 1},
    }
    config = parse_config(data | {"scale": {"rollout": [1, 3]}})
    assert (config.slots, config.groups_in_flight) == (10, 4)
    assert (config.most("rollout"), config.most("env")) == (3, 1)


def test_over_provisioning_limits_what_is_in_flight():
    data = {"model": {"path": "m"}, "env": {"name": "e"}, "rollout": {"workers": 2}}
    buffer = {"groups_per_step": 8, "max_staleness": 2}
    assert parse_config(data | {"buffer": buffer}).slots == 24
    config = parse_config(data | {"buffer": buffer | {"over_provision": 4}})
    assert (config.slots, config.groups_in_flight) == (12, 6)
    assert parse_config(data | {"buffer": buffer | {"over_provision": "all"}}).slots == 24


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


def test_the_policies_of_a_run_are_main_and_those_that_the_recipe_names():
    config = parse_config(
        MINIMAL | {"policies": {"b": {"agents": ["b"], "train": {"learning_rate": 3e-5}}}}, "recipe"
    )
    assert config.policy_names == ("main", "b")
    assert config.policy("main") is config
    assert config.policy("b").train.learning_rate == 3e-5


def test_no_entry_of_policies_is_called_main():
    with pytest.raises(
        ConfigError, match=r"policies\.main: this is the policy that plays the agents no other one names"
    ):
        parse_config(MINIMAL | {"policies": {"main": {"agents": ["b"]}}}, "recipe")


def test_a_recipe_names_files_relative_to_itself_and_the_command_line_to_the_current_folder(
    tmp_path, monkeypatch
):
    for folder in ("here", "recipe/base"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "recipe" / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config("../recipe", ["teacher.path=gone", "algo.loss=my_loss.py:mine"])
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
    assert config.teacher.path == "gone"
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


def written(tmp_path, recipe, base='[model]\npath = "b"\n[train]\nnum_steps = 7\nbetas = [0.9, 0.99]\n'):
    (tmp_path / "shared.toml").write_text(base)
    path = tmp_path / "recipe.toml"
    path.write_text(f'base = "shared.toml"\n[env]\nname = "gridworld"\n{recipe}')
    return path


def test_a_recipe_changes_single_keys_of_its_base_and_the_command_line_those_of_both(tmp_path):
    path = written(tmp_path, "[train]\nnum_steps = 9\n")
    config = load_config(path, ["train.warmup_steps=3"])
    assert config.model.path == "b"
    assert (config.train.num_steps, config.train.betas, config.train.warmup_steps) == (9, (0.9, 0.99), 3)
    assert load_config(path, ["train.num_steps=2"]).train.num_steps == 2


def test_the_objective_and_tables_of_a_recipe_replace_those_of_its_base_as_a_whole(tmp_path):
    base = '[model]\npath = "b"\n[algo]\npreset = "dapo"\n[env]\nconfig = { level = 1 }\n'
    config = load_config(written(tmp_path, "config = { size = 4 }\n[algo]\nentropy_coef = 0.1\n", base))
    assert (config.algo, config.env.config) == ({"entropy_coef": 0.1}, {"size": 4})
    assert load_config(written(tmp_path, "", base)).algo == {"preset": "dapo"}


def test_files_that_a_base_names_are_in_its_own_folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "shared.toml").write_text('[model]\npath = "./model"\n')
    path = tmp_path / "below" / "recipe.toml"
    path.write_text('base = "../shared.toml"\n[env]\nname = "env.py:Mine"\n')
    config = load_config(path)
    assert config.model.path == f"{tmp_path}/model"
    assert config.env.name == f"{tmp_path}/below/env.py:Mine"


@pytest.mark.parametrize(
    ("base", "recipe", "overrides", "message"),
    [
        ("[train]\nnum_step = 7\n", "", [], r"train.num_step: unknown key; .*\(from .*/shared.toml\)"),
        ("[train]\nnum_steps = 0\n", "", [], r"train.num_steps: .* got 0 \(from .*/shared.toml\)$"),
        ("trian = 1\n", "", [], r"trian: unknown key; .*\(from .*/shared.toml\)"),
        ("[train]\nnum_steps = 7\n", "[train]\nnum_steps = 0\n", [], "train.num_steps: .* got 0$"),
        ("[train]\nnum_steps = 7\n", "", ["train.num_steps=0"], "train.num_steps: .* got 0$"),
        ('base = "x"\n', "", [], "shared.toml: base: a base has no base of its own, got 'x'"),
        ("[train\n", "", [], "shared.toml: not valid TOML"),
        ("", "", ["base=other"], "override 'base=other': a base can be named only in a recipe's file"),
    ],
)
def test_problems_of_a_base_name_its_file_and_others_do_not(tmp_path, base, recipe, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(written(tmp_path, '[model]\npath = "m"\n' + recipe, base), overrides)


@pytest.mark.parametrize("name", ["tiny_cp", 3])
def test_a_base_that_is_not_there_lists_those_there_are(tmp_path, name):
    path = tmp_path / "recipe.toml"
    path.write_text(f"base = {name!r}\n")
    with pytest.raises(
        ConfigError,
        match=rf"recipe.toml: base: there is no base {name!r}; .*allowed: agent_gpu, gpu, tiny_cpu",
    ):
        load_config(path)


def test_what_follows_from_other_settings():
    data = {**MINIMAL, "run": {"start_timeout_s": 100.0, "silence_timeout_s": 20.0}}
    assert parse_config(data).outage_timeout_s == 120.0


@pytest.mark.parametrize(
    "name", ["..", ".", ".hidden", "-x", "a/b", "../a", "a\n", "a b", "x" * 101, "x" * 300, "~", "$HOME", "é"]
)
def test_the_name_of_a_run_is_a_folder_of_its_own_that_everything_can_name(name):
    with pytest.raises(ConfigError, match=r"run\.name: "):
        parse_config({**MINIMAL, "run": {"name": name}})


@pytest.mark.parametrize("name", ["", "a", "_a", "1.5-try_2", "x" * 100])
def test_a_plain_name_of_a_run_is_accepted(name):
    assert parse_config({**MINIMAL, "run": {"name": name}}).run.name == name


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("run.seed=4294967296", "run.seed: input should be less than 4294967296"),
        ("data.seed=99999999999999999999", "data.seed: must be a whole number of 64 bits"),
        ("env.config.size=-9223372036854775809", "env.config.size: must be a whole number of 64 bits"),
    ],
)
def test_no_whole_number_is_larger_than_what_is_computed_with(override, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        load_config("gridworld_grpo", [override])


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "key",
    [
        "train.learning_rate", "rollout.temperature", "run.silence_timeout_s", "env.step_timeout_s", "scale.cooldown_s",
        "train.max_logp_error", "algo.kl.coef", "algo.loss.eps_low", "env.config.size", "curriculum.mine",
        "opponents.power", "train.betas.0",
    ],
)  # fmt: skip
def test_no_setting_is_infinite_or_no_number(key, value):
    section, *parents, last = key.split(".")
    own = [float(value), 0.9] if parents == ["betas"] else {last: float(value)}
    settings = own if not parents else {parents[0]: own}
    settings = settings | MINIMAL.get(section, {}) if isinstance(settings, dict) else settings
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}: must be a finite number, got {value}"):
        parse_config({**MINIMAL, section: settings})
    with pytest.raises(ConfigError, match=r"must be a finite number"):
        load_config("gridworld_grpo", [f"train.learning_rate={value}"])


def test_every_path_may_begin_with_a_home_folder_or_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    (tmp_path / "home" / "model").mkdir(parents=True)
    recipe = {
        "run": {
            "folder": "~/runs",
            "python_path": ["~/lib", "$SCRATCH/lib"],
            "sink_python": "${SCRATCH}/bin/python",
        },
        "model": {"path": "~/model"},
        "env": {
            "task_file": "~/tasks.jsonl",
            "config": {"corpus": "$SCRATCH/c", "prompt": "$5 for a ~/ and $NO_ONE/"},
        },
        "engine": {"weights_dir": "$SCRATCH/weights", "speculative": {"model": "~/draft"}},
        "train": {"offload_folder": "${SCRATCH}/offload", "checkpoint_store": "file://$SCRATCH/kept"},
        "policies": {"other": {"model": {"path": "~/model"}}},
        "teacher": {"path": "$SCRATCH/teacher"},
    }
    home = tmp_path / "home"
    assert with_files_in(tmp_path, recipe) == {
        "run": {
            "folder": f"{home}/runs", "python_path": [f"{home}/lib", "/scratch/me/lib"],
            "sink_python": "/scratch/me/bin/python",
        },
        "model": {"path": f"{home}/model"},
        "env": {
            "task_file": f"{home}/tasks.jsonl",
            "config": {"corpus": "/scratch/me/c", "prompt": "$5 for a ~/ and $NO_ONE/"},
        },
        "engine": {"weights_dir": "/scratch/me/weights", "speculative": {"model": f"{home}/draft"}},
        "train": {"offload_folder": "/scratch/me/offload", "checkpoint_store": "file:///scratch/me/kept"},
        "policies": {"other": {"model": {"path": f"{home}/model"}}},
        "teacher": {"path": "/scratch/me/teacher"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("$NOT_SET/runs", "run.folder: the variable $NOT_SET is not set, got '$NOT_SET/runs'"),
        ("/a/${NOT_SET}", "run.folder: the variable ${NOT_SET} is not set, got '/a/${NOT_SET}'"),
        ("~nobody-here/runs", "run.folder: there is no user 'nobody-here', got '~nobody-here/runs'"),
    ],
)
def test_a_variable_or_user_that_is_not_there_is_named(path, said):
    with pytest.raises(ConfigError) as caught:
        load_config("gridworld_grpo", [f"run.folder={path}"])
    assert str(caught.value) == said


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    recipe = PACKAGED_RECIPES / "gridworld_grpo" / "recipe.toml"
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbf" + recipe.read_bytes().replace(b"\n", b"\r\n"))
    assert load_config(tmp_path / "mine.toml", ["run.name=a"]) == load_config(recipe, ["run.name=a"])


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--tensor-parallel-size", "2"], "engine.tensor_parallel"),
        (["--tensor_parallel_size=2"], "engine.tensor_parallel"),
        (["-pp", "2"], "engine.pipeline_parallel"),
        (["--data-parallel-size=2"], "engine.count"),
    ],
)
def test_what_decides_an_engines_gpus_is_said_by_its_key(words, key):
    with pytest.raises(
        ConfigError, match=f"engine.extra_args.*GPUs that its placement does not count; set {key}"
    ):
        load_config("gridworld_grpo", [f"engine.extra_args={words!r}"])
    assert load_config("gridworld_grpo", ["engine.extra_args=['--enable-expert-parallel']"]).engine.extra_args


@pytest.mark.parametrize(
    ("words", "episode_s", "wait_s"),
    [
        ([], 600, 600),
        (["engine.max_model_len=12000"], 600, 600),
        # As slow as 20 tokens a second, and a batch may wait for an episode that is played again.
        (["engine.max_model_len=65536"], 3276, 6552),
        (["engine.max_model_len=65536", "rollout.episode_timeout_s=100"], 100, 600),
        (["rollout.episode_timeout_s=7200"], 7200, 14400),
        (["engine.max_model_len=131072", "buffer.wait_timeout_s=60"], 6553, 60),
    ],
)
def test_long_episodes_have_the_time_that_their_tokens_take(words, episode_s, wait_s):
    config = load_config("gridworld_grpo", words)
    assert (config.rollout.episode_timeout_s, config.buffer.wait_timeout_s) == (episode_s, wait_s)
    again = parse_config(config.model_dump(mode="json"), "again", strict=False)
    assert again.rollout.episode_timeout_s == episode_s and again.buffer.wait_timeout_s == wait_s


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        ([], 1),
        (["engine.count=8", "rollout.max_tokens_per_turn=256"], 4),
        (["engine.count=8", "rollout.max_tokens_per_turn=8192"], 1),
        (["engine.count=2", "rollout.max_tokens_per_turn=16"], 2),
        (["engine.count=8", "rollout.max_tokens_per_turn=256", "rollout.workers=2"], 2),
    ],
)
def test_workers_follow_the_turns_of_engines_on_gpus(monkeypatch, words, workers):
    assert load_config("gridworld_grpo", words).rollout.workers == (2 if "rollout.workers=2" in words else 1)
    monkeypatch.setattr(gpus, "found_gpus", lambda: ["0"])
    assert load_config("gridworld_grpo", words).rollout.workers == workers
