"""Run folders: chosen by name or number, held by one run at a time, and honest about a disk that refuses."""

import json
import os
from pathlib import Path

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.run.folder import RunFolder, choose_folder


def config(folder, name=""):
    run = {"folder": str(folder), "name": name}
    return parse_config({"run": run, "model": {"path": "m"}, "env": {"name": "gridworld"}})


def test_without_a_name_the_recipe_gives_it_and_the_first_free_number(tmp_path):
    recipe = tmp_path / "recipes" / "gridworld_grpo" / "recipe.toml"
    assert choose_folder(config(tmp_path), recipe) == tmp_path / "gridworld_grpo-1"
    (tmp_path / "gridworld_grpo-1").mkdir()
    assert choose_folder(config(tmp_path), recipe) == tmp_path / "gridworld_grpo-2"
    assert choose_folder(config(tmp_path), tmp_path / "mine.toml") == tmp_path / "mine-1"


def test_a_named_run_is_not_overwritten_once_it_has_a_step(tmp_path):
    (tmp_path / "mine").mkdir()
    assert choose_folder(config(tmp_path, "mine"), tmp_path / "r.toml") == tmp_path / "mine"
    (tmp_path / "mine" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"run\.name: .*mine' already holds a run"):
        choose_folder(config(tmp_path, "mine"), tmp_path / "r.toml")


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    path = tmp_path / "run"
    with RunFolder(path), pytest.raises(ConfigError, match="another run is using it"), RunFolder(path):
        pass
    with RunFolder(path):
        pass


def test_a_path_that_cannot_be_written_is_named():
    with pytest.raises(ConfigError, match="run folder /proc/none/run: cannot be written"):
        RunFolder(Path("/proc/none/run")).__enter__()


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json("summary.json", {"steps": 1})
    (tmp_path / f"summary.json.partial-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"summary\.json: cannot be written: No space left on device"):
        folder.write_json("summary.json", {"steps": 2})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 1}
