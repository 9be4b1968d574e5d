"""The supervised start of a run: checked before anything starts, and cached by what it depends on."""

import json

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, InputError, UnavailableError
from asyncrl.extensions.supervised import start
from asyncrl.extensions.supervised.checks import check_supervised
from asyncrl.extensions.supervised.start import start_key
from asyncrl.launch.models.start_model import start_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "2 + 2?", "answer": "4"}\n')
    return path


def config_of(model, rows, sft=None, **sections):
    data = {"train": str(rows), "prompt": "{question}", "heldout_share": 0.0}
    given = {
        "model": {"path": model, "dtype": "float32"},
        "data": data,
        "sft": {"data": "train", **(sft or {})},
    }
    return parse_config({**given, "engine": {"max_model_len": 64}, **sections})


def test_the_key_changes_with_what_the_model_depends_on_and_with_nothing_else(tiny_model, rows):
    key = start_key(config_of(tiny_model, rows))
    assert key.startswith("tiny")
    same = [
        {"train": {"num_steps": 99, "learning_rate": 1.0}},
        {"run": {"seed": 7}},
        {"rollout": {"group_size": 3}},
        {"sft": {"data": "train", "hidden_size": 64}},
    ]
    others = [
        {"sft": {"data": "train", "epochs": 2.0}},
        {"lora": {"rank": 2}},
        {"train": {"optimizer": "muon"}},
        {"engine": {"max_model_len": 32}},
    ]
    for change in same:
        assert start_key(config_of(tiny_model, rows, **change)) == key, change
    for change in others:
        assert start_key(config_of(tiny_model, rows, **change)) != key, change
    rows.write_text(rows.read_text().replace("4", "5"))
    assert start_key(config_of(tiny_model, rows)) != key


def test_a_run_without_a_supervised_start_begins_with_the_model_itself(tiny_model, rows):
    assert start_model(config_of(tiny_model, rows, {"data": ""})) == tiny_model


def test_the_start_is_trained_once_and_goes_on_where_it_was_interrupted(
    tiny_model, rows, tmp_path, monkeypatch
):
    asked = []

    class Training:
        def __init__(self, argv, env, output=None):
            asked.append(argv[3:])

        def wait(self):
            from pathlib import Path

            if len(asked) == 1:
                # Interrupted: it leaves its run folder.
                given = json.loads(Path(asked[0][1]).read_text())["run"]
                work = Path(given["folder"]) / given["name"]
                work.mkdir()
                (work / "config.json").write_text("{}")
                return 130
            out = Path(asked[-1][-1])
            out.mkdir()
            (out / "config.json").write_text("{}")
            return 0

    monkeypatch.setattr(start, "start_process", Training)
    config = config_of(tiny_model, rows)
    with pytest.raises(UnavailableError, match=r"supervised start has failed .* exit code 130"):
        start_model(config)
    model = start_model(config)
    assert asked[0][0] == "sft"
    assert asked[1][:2] == ["sft", "--resume"]
    assert asked[1][2].endswith(f"{start_key(config)}.training")
    assert start_model(config) == model
    assert len(asked) == 2
    assert sorted(path.name for path in (tmp_path / "cache" / "base_models").iterdir()) == [
        start_key(config), f"{start_key(config)}.lock",
    ]  # fmt: skip


def test_rows_that_cannot_be_learned_from_are_refused_before_anything_starts(tiny_model, rows):
    check_supervised(config_of(tiny_model, rows))
    with pytest.raises(ConfigError, match=r"sft.completion: .* has no column 'gold'"):
        check_supervised(config_of(tiny_model, rows, {"completion": "{gold}"}))
    with pytest.raises(ConfigError, match=r"sft.data: there is no file or folder"):
        check_supervised(config_of(tiny_model, rows, {"data": "absent.jsonl"}))
    broken = rows.with_name("broken.jsonl")
    broken.write_text('{"question": "1 + 1?", "answer": "2"}\n{"answer": "4"}\n')
    with pytest.raises(InputError, match=r"broken.jsonl, line 2: column 'question' is missing"):
        check_supervised(config_of(tiny_model, broken))


def test_scripted_episodes_need_an_expert(tiny_model, tmp_path):
    config = parse_config(
        {"model": {"path": tiny_model}, "env": {"name": "gridworld"}, "engine": {"max_model_len": 64},
         "sft": {"data": "scripted"}}
    )  # fmt: skip
    check_supervised(config)
    (tmp_path / "mute.py").write_text(
        "from asyncrl.env.protocol import Env\n\n\nclass Mute(Env):\n    def reset(self):\n        return []\n"
    )
    other = {"env": {"name": f"{tmp_path}/mute.py:Mute"}, "sft": {"data": "scripted"}}
    with pytest.raises(ConfigError, match=r"are episodes of a scripted expert, and .*Mute' has no oracle"):
        check_supervised(parse_config({**config.model_dump(mode="json"), **other}, strict=False))


def test_the_tiny_base_model_takes_no_rows():
    with pytest.raises(ConfigError, match=r"sft.data: must be left out for model.path='sft'"):
        parse_config({"model": {"path": "sft"}, "env": {"name": "gridworld"}, "sft": {"data": "scripted"}})
