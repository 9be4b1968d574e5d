"""`asyncrl env` on adapters and environments with tools."""

import importlib.util
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.requirements import AdapterEnv, need
from asyncrl.import_path import load_object


class Uninstalled(AdapterEnv):
    """Plays a library that is not here."""

    library = "no_such_library"
    extra = "nothing"


def answer(monkeypatch, *lines):
    given = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: next(given))


@pytest.mark.parametrize("command", [["env", "list"], ["env"]])
def test_the_list_says_what_an_adapter_needs(command, capsys, monkeypatch):
    from asyncrl.env import registry

    monkeypatch.setitem(registry.ENVS, "absent", f"{__name__}:Uninstalled")
    assert main(command) == 0
    environments, sets = capsys.readouterr().out.split("\n\n")
    lines = {line.split()[0]: line for line in environments.splitlines()}
    assert lines["absent"].endswith("[needs pip install 'asyncrl[nothing]']")
    assert lines["openenv"].endswith("[needs settings: url]")
    assert "needs" not in lines["gridworld"]
    assert set(lines) == set(registry.ENVS | registry.ELSEWHERE)
    assert "\ngsm8k " in sets
    assert {
        "gymnasium",
        "mcp",
        "openenv",
        "reasoning_gym",
        "tau2",
        "textarena",
        "textworld",
        "verifiers",
    } <= set(lines)


def test_the_check_takes_settings_and_a_number_of_tasks(capsys):
    pytest.importorskip("reasoning_gym")
    settings = json.dumps({"dataset": "leg_counting"})
    assert main(["env", "check", "reasoning_gym", "--config", settings, "--tasks", "3"]) == 0
    assert "3 of 3 went alike twice" in capsys.readouterr().out


def test_checking_all_skips_what_cannot_start(capsys, monkeypatch):
    from asyncrl.extensions.env_tools import commands

    chosen = {name: commands.ENVS[name] for name in ("gridworld", "openenv")}
    monkeypatch.setattr(commands, "ENVS", chosen)
    assert main(["env", "check", "--all", "--tasks", "2"]) == 0
    out = capsys.readouterr().out
    assert "openenv\n  skipped: needs settings: url" in out
    assert "oracle scores: mean reward 1.000" in out


def test_a_person_plays_the_task_of_a_number_where_tasks_are_listed(capsys, monkeypatch):
    config = ["--config", json.dumps({"domain": f"{__name__}:Domain"})]
    answer(monkeypatch, "It is 2.")
    assert main(["env", "play", "tau2", "--seed", "1", *config]) == 0
    out = capsys.readouterr().out
    assert "[user] question 2" in out and "done: reward 1" in out
    assert main(["env", "play", "tau2", "--seed", "9", *config]) == 2
    assert "the train split of 'tau2' has fewer tasks" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_a_game_that_waits_for_a_line():
    terminal, there = pty.openpty()
    command = [sys.executable, "-m", "asyncrl", "env", "play", "gridworld"]
    playing = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, start_new_session=True)
    os.close(there)
    try:
        seen = b""
        while not seen.endswith(b"> "):
            seen += os.read(terminal, 65536)
        assert b"Ctrl-D ends the game" in seen
        playing.send_signal(signal.SIGINT)
        assert playing.wait(60) == 130
    finally:
        playing.kill()
        playing.wait()
        os.close(terminal)


class Domain:
    """Four questions without tools or user; whatever is said is right."""

    def get_tasks(self):
        return [{"id": str(i), "ticket": f"question {i}"} for i in range(4)]

    def get_environment(self):
        return self

    def get_user(self, task, environment):
        return None

    def get_policy(self):
        return "Answer."

    def get_tools(self):
        return []

    def get_reward(self, task, environment, messages):
        return 1.0


def test_a_module_or_path_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[mcp\]'"):
        need("no_such_library", "mcp")
    with pytest.raises(ConfigError, match="reward: must be an import path"):
        load_object("reward", "nothing")
    with pytest.raises(ConfigError, match="reward: 'json:nothing' cannot be imported"):
        load_object("reward", "json:nothing")
    assert importlib.util.find_spec("no_such_library") is None


@pytest.mark.parametrize("text", ["{level = 2}", '{"level": 2}'])
def test_settings_are_a_table_of_toml_or_json(text, capsys):
    assert main(["env", "check", "sql", "--tasks", "2", "--config", text]) == 0
    capsys.readouterr()
    for wrong in ("{level: 2}", "2"):
        with pytest.raises(SystemExit):
            main(["env", "check", "sql", "--config", wrong])
        assert "{a = 1}" in (told := capsys.readouterr().err) or "{level = 2}" in told


def test_a_new_file_has_the_readme_s_environment_and_is_found_as_the_printed_commands_name_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["env", "new", "new_guess"]) == 0
    commands = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert commands[0] == "asyncrl env check new_guess:GuessNumber"
    assert commands[2] == "asyncrl train gridworld_grpo env.name=new_guess:GuessNumber"
    assert main([*commands[0].split()[1:], "--tasks", "3"]) == 0
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert f"```python\n{(tmp_path / 'new_guess.py').read_text()}```" in readme


def test_a_new_file_replaces_none_and_elsewhere_it_is_named_by_its_path(tmp_path, capsys):
    file = tmp_path / "guess.py"
    assert main(["env", "new", str(file)]) == 0
    assert f"env check {file}:GuessNumber" in capsys.readouterr().out
    file.write_text("mine")
    assert main(["env", "new", str(file)]) == 2
    assert "is there already; give another name" in capsys.readouterr().err
    assert main(["env", "new", str(tmp_path / "none" / "guess.py")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("command", ["check", "play"])
def test_an_environment_that_needs_settings_says_which(command, capsys):
    assert main(["env", command, "dataset"]) == 2
    assert "--config.data: missing; " in capsys.readouterr().err


def test_a_known_data_set_is_checked_by_its_name(tmp_path, capsys):
    rows = [{"question": f"How many are {n}?", "answer": f"Count.\n#### {n}"} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.dumps({"train": str(tmp_path / "rows.jsonl"), "reward": "exact"})
    main(["env", "check", "gsm8k", "--tasks", "3", "--config", config])
    said = capsys.readouterr().out
    assert "  ok      messages are well formed: 0 malformed" in said
    assert main(["env", "check", "humaneval"]) == 2
    assert "'humaneval' is played by the environment 'asyncrl." in capsys.readouterr().err
