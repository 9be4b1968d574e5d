"""What `[data]` says decides the environment, and known sets fill in what it leaves open."""

import pytest

from asyncrl.config import load_config, override_config, parse_config
from asyncrl.config_sections import DataConfig, DataSource
from asyncrl.errors import ConfigError
from asyncrl.rows.settings import resolved, settings_from, sources_of

PROGRAM = "asyncrl.envs.benchmarks.program:Program"


def config(**sections):
    return parse_config({"model": {"path": "m"}, **sections})


def test_rows_are_played_by_the_environment_dataset():
    found = config(data={"train": "a.jsonl", "reward": "exact"})
    assert found.env.name == "dataset"
    assert found.env.config == {"data": {"train": "a.jsonl", "reward": "exact"}}
    assert settings_from(found.env.config["data"]) == found.data
    assert parse_config(found.model_dump(mode="json"), strict=False) == found


def test_the_name_of_a_known_set_stands_for_its_rows_and_its_environment():
    found = config(env={"name": "gsm8k", "step_timeout_s": 5.0})
    assert (found.env.name, found.env.step_timeout_s, found.data.set) == ("dataset", 5.0, "gsm8k")
    assert sources_of(found.data, "train") == [DataSource(path="openai/gsm8k", config="main", split="train")]
    assert sources_of(found.data, "heldout") == [DataSource(path="openai/gsm8k", config="main", split="test")]
    assert config(env={"name": "gsm8k"}, data={"train": "mine.jsonl"}).data.train == "mine.jsonl"
    assert config(env={"name": "humaneval"}, data={"train": "a.jsonl"}).env.name == PROGRAM
    assert config(data={"train": "/x/HumanEval.jsonl.gz"}).env.name == PROGRAM
    assert config(data={"train": "gsm8k"}).env.name == "dataset"


def test_another_environment_keeps_its_name_and_settings():
    found = config(env={"name": "my_env:Mine", "config": {"level": 2}}, data={"train": "gsm8k_train.jsonl"})
    assert (found.env.name, found.env.config) == ("my_env:Mine", {"level": 2})


def test_the_tokenizer_goes_along_where_tokens_are_counted():
    found = config(data={"train": "a.jsonl", "max_prompt_tokens": 5})
    assert found.env.config["tokenizer"] == "m"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"env": {"name": "dataset"}}, "data.train: missing; the environment 'dataset' plays the rows of"),
        (
            {"env": {"name": "gsm8k"}, "data": {"set": "math"}},
            "data.set: must be left out for env.name='gsm8k'",
        ),
        ({"data": {"set": "gsmk8"}}, "data.set: unknown data set 'gsmk8'; did you mean 'gsm8k'?"),
        ({"data": {"train": "a.jsonl", "promt": "x"}}, "data.promt: unknown key; did you mean 'prompt'?"),
        (
            {"data": {"train": "a.jsonl", "limit": -1}},
            "data.limit: input should be greater than or equal to 0",
        ),
        ({"data": {"train": [{"path": ""}]}}, "data.train"),
        (
            {"env": {"name": "dataset", "config": {"level": 1}}, "data": {"train": "a.jsonl"}},
            r"env.config.level: \[data\] has the settings of env.name='dataset'",
        ),
        (
            {"env": {"name": "x", "task_file": "t.jsonl"}, "data": {"train": "a.jsonl"}},
            "env.task_file must be left out",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(sections, message):
    with pytest.raises(ConfigError, match=message):
        config(**sections)


def test_files_are_relative_to_the_recipe_and_hub_names_stay(tmp_path, monkeypatch):
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    for name in ("train.jsonl", "more.jsonl", "reward.py"):
        (recipe / name).write_text("")
    (recipe / "recipe.toml").write_text(
        'model.path = "m"\n[data]\ntrain = ["train.jsonl", { path = "more.jsonl" }, "openai/gsm8k"]\n'
        'heldout = "none.jsonl"\nreward = "reward.py:f"\n'
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.jsonl").write_text("")
    data = load_config("recipe").data
    assert data.train == [f"{recipe}/train.jsonl", DataSource(path=f"{recipe}/more.jsonl"), "openai/gsm8k"]
    assert data.heldout == "none.jsonl"
    assert data.reward == f"{recipe}/reward.py:f"
    assert load_config("recipe", ["data.train=own.jsonl"]).data.train == f"{tmp_path}/own.jsonl"


@pytest.mark.parametrize("key", ["data.prompt", "data.system", "data.answer", "sft.prompt", "sft.completion"])
def test_a_template_on_the_command_line_needs_no_quotes_of_its_own(tmp_path, key):
    (tmp_path / "recipe.toml").write_text('model.path = "m"\n[data]\ntrain = "a.jsonl"\n')
    for override in (f"{key}={{question}} =", f'{key}="{{question}} ="'):
        config = load_config(tmp_path, [override])
        section, _, name = key.partition(".")
        assert getattr(getattr(config, section), name) == "{question} ="


def test_a_run_that_has_begun_keeps_its_rows():
    with pytest.raises(ConfigError, match="data cannot change while a run goes on"):
        override_config(config(data={"train": "a.jsonl"}), ["data.limit=3"])


def test_a_known_set_fills_in_what_is_left_open():
    found = resolved(DataConfig(train="gsm8k_train.jsonl"))
    assert (found.prompt, found.answer, found.reward) == ("{question}", "answer", "math")
    assert "\\boxed" in found.system
    own = resolved(DataConfig(train="gsm8k_train.jsonl", prompt="Q: {question}", reward="my.py:f"))
    assert (own.prompt, own.answer, own.reward, own.system) == ("Q: {question}", "answer", "my.py:f", None)
    assert resolved(DataConfig(train="gsm8k_train.jsonl", system="")).system == ""
    assert resolved(DataConfig(train="gsm8k_train.jsonl", set="none")).reward == ""
    assert resolved(DataConfig(set="dapo-math-17k")).dedupe


def test_rows_of_ones_own_are_not_evaluated_on_those_of_the_hub():
    assert sources_of(DataConfig(train="gsm8k_train.jsonl"), "heldout") == []
    own = DataConfig(train="gsm8k_train.jsonl", heldout="gsm8k_test.jsonl")
    assert sources_of(own, "heldout") == [DataSource(path="gsm8k_test.jsonl")]
    hub = sources_of(DataConfig(train={"path": "openai/gsm8k", "revision": "abc"}), "train")
    assert hub == [DataSource(path="openai/gsm8k", config="main", split="train", revision="abc")]
    short = sources_of(DataConfig(train=["gsm8k", "svamp"]), "train")
    assert [one.path for one in short] == ["openai/gsm8k", "ChilleD/SVAMP"]
    with pytest.raises(ConfigError, match=r"data\.train: 'math500' has no rows for it"):
        sources_of(DataConfig(train=["math500"]), "train")
    assert (
        sources_of(DataConfig(train="gsm8k", heldout="math500"), "heldout")[0].path
        == "HuggingFaceH4/MATH-500"
    )
