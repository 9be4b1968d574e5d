"""Known data sets: their table is whole, and they are found by name, hub name and file name."""

import pytest

from asyncrl.env.registry import ENVS, load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.importers.records import importer
from asyncrl.rows.known_sets import known_set, known_sets, set_of

LISTED = {
    "gsm8k",
    "math",
    "math500",
    "aime",
    "amc",
    "dapo-math-17k",
    "deepscaler",
    "big-math",
    "svamp",
    "humaneval",
    "mbpp",
}
LISTED |= {"livecodebench", "ifeval", "bfcl", "hotpotqa", "ultrafeedback"}


def test_the_sets_that_people_come_for_are_there():
    assert set(known_sets()) >= LISTED
    assert not set(known_sets()) & set(ENVS)


@pytest.mark.parametrize("name", known_sets())
def test_a_set_says_its_licence_and_how_its_rows_are_played(name):
    found = known_sets()[name]
    assert found.licence
    assert found.about
    if found.format:
        assert found.env == importer(found.format).ENV
        assert load_env(found.env)
        assert not found.prompt
    elif name != "ultrafeedback":
        assert found.reward
        assert found.answer
    assert found.path or found.format


def test_a_set_names_its_splits_on_the_hub():
    found = known_set("gsm8k")
    assert (found.source("train").path, found.source("train").config, found.source("train").split) == (
        "openai/gsm8k",
        "main",
        "train",
    )
    assert found.source("heldout").split == "test"
    assert known_set("math500").source("train") is None
    assert known_set("math500").source("heldout").split == "test"
    assert known_set("livecodebench").source("heldout") is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("gsm8k", "gsm8k"),
        ("openai/gsm8k", "gsm8k"),
        ("/data/gsm8k_train.jsonl", "gsm8k"),
        ("HumanEval.jsonl.gz", "humaneval"),
        ("my_math_500.parquet", "math500"),
        ("math.jsonl", "math"),
        ("SVAMP.json", "svamp"),
        (["x.jsonl", {"path": "svamp.jsonl"}], "svamp"),
        ("mathematics.jsonl", ""),
        ("someone/gsm8k", ""),
        ("gsm8k/", ""),
        ("", ""),
        (5, ""),
    ],
)
def test_a_source_is_taken_for_a_set_by_its_name(source, name):
    assert set_of(source) == name


def test_an_unknown_set_is_refused_with_what_there_is():
    with pytest.raises(
        ConfigError, match=r"data\.set: unknown data set 'gsmk8'; did you mean 'gsm8k'.* or 'none'"
    ):
        known_set("gsmk8")
    assert known_set("none") is None
    assert known_set("") is None
