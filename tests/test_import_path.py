"""Import paths name modules of the current folder and files, and say what was looked for where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.algo.settings import resolve_settings
from asyncrl.config import load_config
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.gateway.agents import load_agent
from asyncrl.import_path import absolute, load_object, search_in, source_file, top_level_names
from asyncrl.launch.models.base_model import base_model_key
from asyncrl.process_start import leave_safe_path, run_process, without_folder
from asyncrl.sandbox.backends import backend_class

ENV = """
from asyncrl.env.protocol import Env

class Mine(Env):
    def __init__(self, task, high: int = 3):
        super().__init__(task)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder; what it adds to the module search path is taken back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_imported_once_whatever_names_it(folder):
    (folder / "mine_once.py").write_text("made = object()\n")
    found = load_object("reward", "mine_once.py:made")
    assert found is load_object("reward", f"{folder}/mine_once.py:made")
    assert found is load_object("reward", "./mine_once.py:made")


def test_a_file_can_import_what_lies_beside_it(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "helper_beside.py").write_text("value = 7\n")
    (folder / "sub" / "mine_beside.py").write_text("from helper_beside import value\n")
    assert load_object("reward", "sub/mine_beside.py:value") == 7


def test_a_module_is_found_in_the_folders_that_were_named(folder):
    (folder / "lib").mkdir()
    (folder / "lib" / "mine_in_lib.py").write_text("value = 8\n")
    with pytest.raises(ConfigError, match="there is no module 'mine_in_lib'"):
        load_object("reward", "mine_in_lib:value")
    search_in([folder / "lib"])
    assert load_object("reward", "mine_in_lib:value") == 8
    assert source_file("reward", "mine_in_lib") == folder / "lib" / "mine_in_lib.py"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such:x", r"reward: 'no_such:x' cannot be imported: there is no module 'no_such' in .*HERE.* installed"),
        ("json.no_such:x", "there is no module 'json.no_such'"),
        ("gone.py:x", "there is no file 'HERE/gone.py'"),
        ("mine_broken.py:x", r"ModuleNotFoundError: No module named 'of_mine' \(HERE/mine_broken.py, line 2\)"),
        ("mine_syntax.py:x", r"SyntaxError: .*mine_syntax.py, line 1"),
        ("mine_exits.py:x", r"SystemExit: 3 \(HERE/mine_exits.py, line 1\)"),
        ("mine_named.py:reword", "mine_named.py has no 'reword'; did you mean 'reward'?"),
        ("reward", "must be an import path such as my_pkg.my_module:name or path/to/file.py:name, got 'reward'"),
    ],
)  # fmt: skip
def test_the_message_says_what_was_looked_for_and_where(folder, path, problem):
    (folder / "mine_broken.py").write_text("import json\nimport of_mine\n")
    (folder / "mine_syntax.py").write_text("def\n")
    (folder / "mine_exits.py").write_text("raise SystemExit(3)\n")
    (folder / "mine_named.py").write_text("reward = 1\n")
    search_in([folder])
    with pytest.raises(ConfigError, match=problem.replace("HERE", str(folder)).replace("?", r"\?")):
        load_object("reward", path)


def test_a_relative_file_is_made_absolute_and_other_texts_stay():
    base = Path("/base/recipes")
    assert absolute("../my_env.py:Mine", base) == "/base/my_env.py:Mine"
    assert absolute("/abs/my_env.py:Mine", base) == "/abs/my_env.py:Mine"
    for text in ("pkg.mod:Mine", "see my_env.py: it is short", "my_env.py", "http://127.0.0.1:80", ".py:x"):
        assert absolute(text, base) == text


def test_environments_agents_losses_and_sandboxes_take_files(folder):
    (folder / "mine_env.py").write_text(ENV)
    (folder / "mine_agent.py").write_text("def play(task, episode):\n    return 1.0\n")
    (folder / "mine_loss.py").write_text("def mine(inputs, *, eps: float = 0.1):\n    return 0\n")
    (folder / "mine_box.py").write_text("from asyncrl.sandbox.subprocess import SubprocessSandbox as Box\n")
    assert load_env("mine_env.py:Mine").__name__ == "Mine"
    assert load_agent({"callable": "mine_agent.py:play"}).function({}, None) == 1.0
    settings = resolve_settings({"loss": {"name": "mine_loss.py:mine", "eps": 0.3}})
    assert settings["loss"] == {"name": "mine_loss.py:mine", "eps": 0.3}
    with pytest.raises(ConfigError, match=r"algo.loss.epz: .* did you mean 'eps'"):
        resolve_settings({"loss": {"name": "mine_loss.py:mine", "epz": 0.3}})
    with pytest.raises(ConfigError, match="there is no file"):
        resolve_settings({"loss": "mine_lozz.py:mine"})
    assert backend_class("mine_box.py:Box").__name__ == "SubprocessSandbox"


@pytest.mark.slow
def test_a_run_finds_its_modules_again_from_another_folder(folder, monkeypatch):
    (folder / "mine_found.py").write_text(ENV)
    config = load_config("gridworld_grpo", ["env.name=mine_found:Mine", "run.name=r"])
    assert config.run.python_path == [str(folder)]
    assert load_env(config.env.name).__name__ == "Mine"
    (folder / "config.json").write_text(config.model_dump_json())
    code = (
        "from asyncrl.config import load_config; from asyncrl.env.registry import load_env; "
        f"print(load_env(load_config({str(folder / 'config.json')!r}).env.name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False, env=os.environ
    )
    assert "mine_found.Mine" in done.stdout, done.stderr


@pytest.mark.slow
def test_the_console_script_finds_the_current_folder(folder):
    (folder / "mine_here.py").write_text(ENV)
    # As pip's script does: its own folder is on the path, the current one is not.
    code = "import sys; sys.path.remove(''); from asyncrl.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = ["config", "gridworld_grpo", "env.name=mine_here:Mine"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_edited_environment_gets_a_base_model_of_its_own(folder):
    (folder / "mine_edited.py").write_text(ENV)
    config = load_config("gridworld_grpo", ["env.name=mine_edited.py:Mine"])
    before = base_model_key(config)
    assert before.startswith("Mine-") and before == base_model_key(config)
    (folder / "mine_edited.py").write_text(ENV + "    max_turns = 2\n")
    assert base_model_key(config) != before


@pytest.mark.parametrize("start", ["\ufeff", "# -*- coding: latin-1 -*-\nNAME = 'Bär'\n"])
def test_a_file_of_another_editor_is_read_as_python_reads_it(folder, start):
    encoding = "latin-1" if "latin" in start else "utf-8"
    (folder / "mine_marked.py").write_bytes(
        f"{start}def score(completion):\n    return 1.0\n".encode(encoding)
    )
    top_level_names.cache_clear()
    assert top_level_names("data.reward", "mine_marked.py")["score"].name == "score"
    assert top_level_names("data.reward", "mine_marked.py").keys() <= {"score", "NAME"}
    (folder / "mine_env.py").write_bytes(start.encode(encoding) + ENV.encode())
    key = base_model_key(load_config("gridworld_grpo", ["env.name=mine_env.py:Mine"]))
    assert key.startswith("Mine-")


def test_a_class_is_named_in_a_file_that_begins_with_a_mark(folder):
    (folder / "mine_first.py").write_text("\ufeffclass Mine:\n    pass\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="mine_first:Mine"):
        load_env("mine_first.py")


TAKEN = ["token", "calendar", "queue", "types", "math_verify", "httpx", "numpy", "asyncrl"]
"""Names of modules of Python, of packages that asyncrl uses, and its own."""


@pytest.fixture
def hostile(folder):
    """A current folder whose files have the names of modules that others import."""
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} of the current folder')\n")
    (folder / "my_env.py").write_text("import calendar\nfrom helper_of_mine import value\n" + ENV)
    (folder / "helper_of_mine.py").write_text("value = 7\n")
    return folder


@pytest.mark.slow
def test_a_process_imports_no_file_of_the_current_folder_in_place_of_a_module(hostile):
    code = (
        "import calendar, token, queue, httpx, numpy, math_verify; from asyncrl.env.registry import load_env; "
        "print(load_env('my_env:Mine').__name__, calendar.month_name[1])"
    )
    # As a process of a run: by `python -m` from this folder, and its command searches there.
    (hostile / "started.py").write_text(
        f"from pathlib import Path\nfrom asyncrl.import_path import search_last\n"
        f"search_last(Path.cwd())\n{code}\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent.parent)])
    done = run_process(
        [sys.executable, "-m", "asyncrl", "env", "list"], os.environ | {"PYTHONPATH": path}, 600.0
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-P", "started.py"], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout == "Mine January\n", done.stderr


def test_what_a_configuration_names_is_the_users_though_a_module_of_that_name_is_installed(folder):
    (folder / "calendar.py").write_text("reward = 'mine'\n")
    search_in([folder])
    assert load_object("reward", "calendar:reward") == "mine"
    import calendar

    assert calendar.month_name[1] == "January"
    assert source_file("reward", "calendar") == folder / "calendar.py"


def test_a_child_of_a_process_of_a_run_finds_modules_as_python_does(monkeypatch):
    started = without_folder({"A": "b"})
    assert started["PYTHONSAFEPATH"]
    monkeypatch.setenv("PYTHONSAFEPATH", started["PYTHONSAFEPATH"])
    leave_safe_path()
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    leave_safe_path()
    assert os.environ["PYTHONSAFEPATH"] == "1"
    assert without_folder({"PYTHONSAFEPATH": "1"})["PYTHONSAFEPATH"] == "1"
