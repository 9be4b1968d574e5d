"""The command line: help at once, refusals by name, exit codes that mean something."""

import json
import os
import re
import subprocess
import sys

import pytest

from asyncrl.cli import READER_GONE, commands, main
from asyncrl.commands.serve import OPTIONS, roles


def run(capsys, *argv):
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in commands():
        assert re.search(rf"^    {command}\s", out, re.MULTILINE)


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: asyncrl {command}")


def test_config_prints_every_setting_with_overrides_applied(capsys):
    code, out, _ = run(capsys, "config", "gridworld_grpo", "train.num_steps=7", "algo.preset=grpo")
    resolved = json.loads(out)
    assert code == 0
    assert resolved["train"]["num_steps"] == 7
    assert set(resolved) == {
        "run", "model", "env", "engine", "rollout", "buffer", "algo", "train", "judge", "lora",
        "reference", "teacher", "eval", "sft", "policies", "placement", "curriculum", "opponents",
        "outer", "scale", "sft_phase", "swarm", "data", "extensions", "length", "majority", "critical_path",
    }  # fmt: skip
    assert resolved["algo"]["loss"]["name"] == "ppo_clip"


def test_config_shows_where_the_processes_of_a_recipe_go(capsys, monkeypatch):
    monkeypatch.setattr("asyncrl.gpus.found_gpus", lambda: ("0", "1"))
    code, out, err = run(capsys, "config", "gridworld_grpo", "model.path=m")
    assert (code, err) == (0, "placement: 2 GPUs: trainer 0, engine-0 1\n")
    resolved = json.loads(out)
    assert resolved["model"]["dtype"] == "bfloat16"
    assert resolved["engine"]["gpu_memory_utilization"] == 0.9
    code, _, err = run(capsys, "config", "gridworld_grpo", "engine.count=2")
    assert code == 2
    assert (
        "engine.count = 2 x engine.tensor_parallel = 1 need 2 GPUs, 1 is left beside train.ranks = 1" in err
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["config", "team_policies", "policies.keepers.algo.preset=grpoo"], "grpoo"),
        (
            ["serve", "rollout", "--model", "m", "--engines", "u", "--env", "u", "--policy", "a=u"],
            "--policy a=u: must look",
        ),
        (
            ["config", "gridworld_grpo", "train.num_stepz=1"],
            "train.num_stepz: unknown key; did you mean 'num_steps'?",
        ),
        (["config", "gridworld_grpo", "algo.preset=grpp"], "unknown preset 'grpp'"),
        (["config", "gridworld_grpo", "env.name=gridwrld"], "unknown environment 'gridwrld'"),
        (["config", "nowhere"], "no recipe 'nowhere'"),
        (["config", "nowhere.toml"], "there is no file 'nowhere.toml'; `asyncrl recipes` lists"),
        (["config", "gridworld"], "no recipe 'gridworld'; did you mean 'gridworld_grpo'?"),
        (["runs", "nowhere"], "nowhere: no such folder in "),
        (["serve", "rollout"], "serve rollout: needs --model"),
        (["serve", "rollout", "--model", "m"], "serve rollout: needs --engines"),
        (["serve", "engine"], "serve engine: needs --model"),
        (["serve", "engine", "--model", "./nowhere"], "'./nowhere' has no config.json"),
        (
            ["serve", "policy", "./nowhere"],
            "serve policy: there is no folder 'nowhere'; give a Hugging Face folder",
        ),
        (["serve", "buffer", "--folder", "nowhere"], "--folder nowhere: has no config.json"),
        (
            ["serve", "gateway", "--model", "/nope", "--engines", "http://127.0.0.1:1"],
            "no tokenizer can be loaded from '/nope'; give a Hugging Face model folder or a hub name",
        ),
        (
            ["serve", "gateway", "--agent-token-file", "t"],
            "--agent-token-file: is for --join; those who call a gateway on its own have the token of --token-file",
        ),
        (["serve", "env", "--token-file", "nowhere"], "--token-file nowhere: cannot be read"),
        (["serve", "env", "--join", "http://127.0.0.1:9"], "give the run's join token"),
        (["serve", "env", "--port", "70000"], "cannot listen on 127.0.0.1:70000"),
    ],
)
def test_what_is_wrong_is_named_with_exit_code_2(capsys, monkeypatch, tmp_path, argv, message):
    monkeypatch.delenv("ASYNCRL_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert err.startswith("asyncrl: ")
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_word_that_is_nearly_right_is_followed_by_the_right_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guess.toml").write_text("")
    (tmp_path / "my_game.py").write_text("import random\n\n\nclass Game:\n    pass\n")
    for argv, hint in (
        (["trian", "gridworld_grpo"], "unknown command 'trian'; did you mean 'train'?"),
        (["config", "guess"], "no recipe 'guess'; did you mean 'guess.toml'?"),
        (["config", "gridworld_grpo", "env.name=my_game"], "name its class, too, such as my_game:Game"),
        (["env", "check", "my_game.py"], "name its class, too, such as my_game:Game"),
        (
            ["train", "gridworld_grpo", "--run.seed=3"],
            "unrecognized arguments: --run.seed=3; a setting is written without dashes: run.seed=3",
        ),
    ):
        code, _, err = run(capsys, *argv)
        assert code == 2 and hint in err


@pytest.mark.parametrize("argv", [[], ["trian"], ["serve", "buffers"]])
def test_an_unknown_command_or_role_is_refused_with_those_there_are(capsys, argv):
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert "usage: asyncrl" in err


def test_options_after_a_nested_command_reach_it(capsys):
    code, out, _ = run(capsys, "sandbox", "check", "--list")
    assert code == 0
    assert len(out.splitlines()) > 10
    code, out, _ = run(capsys, "env", "list", "--help")
    assert code == 0
    assert "usage: asyncrl env list" in out


@pytest.mark.slow
def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "asyncrl 0.1.0\n")


def test_settings_may_follow_an_option(capsys, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "asyncrl.extensions.supervised.command.run", lambda args: seen.update(vars(args)) or 0
    )
    code, _, _ = run(
        capsys, "sft", "gridworld_grpo", "sft.batch_size=1", "--out", "base", "sft.steps=2", "run.seed=3"
    )
    assert (code, seen["overrides"]) == (0, ["sft.batch_size=1", "sft.steps=2", "run.seed=3"])
    for wrong in (["--no-such=1"], ["word"]):
        code, _, err = run(capsys, "sft", "gridworld_grpo", "--out", "base", *wrong)
        assert code == 2 and f"unrecognized arguments: {wrong[0]}" in err


@pytest.mark.parametrize("role", roles())
def test_a_role_shows_its_own_options_only(capsys, role):
    code, out, _ = run(capsys, "serve", role, "--help")
    assert code == 0 and out.startswith(f"usage: asyncrl serve {role}")
    own = set(roles()[role].OPTIONS)
    shown = set(re.findall(r"^  ([\w-]+)", out, re.MULTILINE))
    assert shown & {*OPTIONS, *own} == own


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["env", "--model", "m"], "--model"),
        (["engine", "--buffer", "u"], "--buffer"),
        (["policy", "m", "--join", "u"], "--join"),
    ],
)
def test_an_option_of_another_role_is_refused(capsys, argv, option):
    code, _, err = run(capsys, "serve", *argv)
    assert code == 2
    assert f"unrecognized arguments: {option}" in err


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("argv", [["config", "gridworld_grpo"], ["recipes"], ["serve", "env", "--help"]])
def test_a_reader_that_goes_away_gets_no_traceback(argv, unbuffered):
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncrl", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == b""
    # argparse drops what it cannot write at once.
    assert process.wait(60) == (0 if unbuffered and "--help" in argv else READER_GONE)


def test_a_broken_connection_is_no_reader_that_went_away(monkeypatch):
    def fail(args):
        raise BrokenPipeError("connection")

    monkeypatch.setattr("asyncrl.extensions.doctor.command.run", fail)
    with pytest.raises(BrokenPipeError, match="connection"):
        main(["doctor"])
