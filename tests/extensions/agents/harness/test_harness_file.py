"""What a harness's file may say, and what is said of one that is wrong."""

import subprocess

import pytest

from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.agents.harness import agent, program
from asyncrl.extensions.agents.harness import file as harness_file
from asyncrl.extensions.agents.harness.agent import load_any_agent, load_harness
from asyncrl.extensions.agents.harness.file import fill, packaged, read_harness
from asyncrl.types import Task

IMAGE = 'command = ["a", "{prompt}"]\nprogram = '


def write(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_harness_is_read_pinned_and_passes_the_prompt_on(name):
    found = read_harness(name)
    assert found.about
    assert found.program is None or found.program.path or found.program.version
    assert found.sandbox_limits(60.0).wall_s == 60.0


def test_the_packaged_ones_are_those_of_the_page():
    assert packaged() == [
        "aider", "bash", "claude-code", "codex", "mini-swe-agent", "opencode", "openhands", "qwen-code", "smolagents",
        "terminus-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "command"),
        ('command = ["true"]', "the prompt is passed nowhere"),
        ('command = ["a", "{prompt}"]\nprogram = { npm = "a" }', "program.version: missing"),
        ('command = ["a", "{prompt}"]\nprogram = { npm = "a", pip = "b" }', "give one of npm, pip, path and image"),
        ('command = ["a", "{prompt}"]\nprogram = { pip = "a; rm", version = "1" }', "program.pip"),
        ('command = ["a", "{prompt}"]\nprogram = { pip = "a", version = "latest" }', "program.version"),
        (IMAGE + '{ image = "agent:1", folder = "/opt/a" }', "program.image: must be NAME@sha256:DIGEST, or local"),
        (IMAGE + '{ image = "--x@sha256:' + "0" * 64 + '" }', "program.image: must be NAME@sha256:DIGEST"),
        (IMAGE + '{ image = "localhost/a:1" }', "program.folder: missing"),
        (IMAGE + '{ image = "localhost/a:1", folder = "opt" }', "program.folder: must be an absolute path outside of"),
        (IMAGE + '{ image = "localhost/a:1", folder = "/usr/lib/a" }', "such as /opt/agent, got '/usr/lib/a'"),
        (IMAGE + '{ image = "localhost/a:1", folder = "/opt/../etc" }', "program.folder: must be an absolute path"),
        (IMAGE + '{ image = "localhost/a:1", folder = "/" }', "program.folder: must be an absolute path"),
        (IMAGE + '{ image = "localhost/a:1", folder = "/opt/a", engine = "lxc" }', "'podman' or 'docker', got 'lxc'"),
        (IMAGE + '{ image = "localhost/a:1", folder = "/opt/a", version = "1" }', "program.version: must be left out"),
        (IMAGE + '{ npm = "a", version = "1", folder = "/opt/a" }', "program.folder: must be left out with npm"),
        ('command = ["a", "{prompt}"]\nfiles = { "../x" = "" }', "must be a path below the home"),
        ('command = ["a", "{prompt}"]\nlimits = { wall_s = 1 }', "limits.wall_s: unknown"),
        ('command = ["a", "{prompt}"]\nhome = "x"', "home"),
        ("command = ", "own.toml"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, words):
    with pytest.raises(ConfigError, match=r"env.config.harness") as raised:
        read_harness(write(tmp_path, text))
    assert words in str(raised.value)


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'codex'.*mini-swe-agent"):
        read_harness("codx")
    with pytest.raises(ConfigError, match=r"there is no file"):
        read_harness(str(tmp_path / "none.toml"))


def test_only_known_places_are_filled():
    values = {"home": "/h", "prompt": "say {home}"}
    assert fill('{"a": {home}, "b": {c}} {prompt}', values) == '{"a": /h, "b": {c}} say {home}'


def test_a_program_that_is_not_there_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, 'command = ["a", "{prompt}"]\nprogram = { path = "gone.py" }')
    with pytest.raises(ConfigError, match=r"program.path: there is no .*gone.py"):
        program.install(path, read_harness(path))
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path))
    monkeypatch.setattr(program.shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match=r"needs npm"):
        program.install("codex", read_harness("codex"))


def test_a_program_that_a_harness_only_starts_must_be_there(tmp_path):
    path = write(tmp_path, 'command = ["a", "{prompt}"]\nneeds = ["sh", "no-such-multiplexer"]')
    with pytest.raises(UnavailableError, match=r"needs no-such-multiplexer, which is not there; install it"):
        program.install(path, read_harness(path))


def test_an_interpreter_that_a_version_manager_only_names_is_looked_for_where_it_keeps_them(
    tmp_path, monkeypatch
):
    def write_program(place, code):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\nexit {code}\n")
        place.chmod(0o755)
        return str(place)

    shim = write_program(tmp_path / "shims" / "python3.99", 127)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = program.Program(pip="a", version="1", python="3.99")
    with pytest.raises(UnavailableError, match=r"a needs python3.99, which is not there"):
        program._interpreter(asked)
    kept = write_program(tmp_path / ".pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", 0)
    assert program._interpreter(asked) == kept != shim


def test_a_harness_needs_tasks_that_are_a_folder():
    with pytest.raises(ConfigError, match=r"env.config.tasks: missing"):
        load_harness({"harness": "bash"})
    with pytest.raises(ConfigError, match=r"'countdown' gives no folder to work in"):
        load_harness({"harness": "bash", "tasks": "countdown"})
    with pytest.raises(ConfigError, match=r"one of harness and command"):
        load_any_agent({"harness": "bash", "tasks": "terminal", "command": ["x"]})


def test_an_episode_without_time_for_the_agent_is_refused_before_anything_starts():
    agent = load_harness({"harness": "bash", "tasks": "terminal"})
    with pytest.raises(ConfigError, match=r"rollout.episode_timeout_s: must be at least 80, got 70"):
        agent.check(Task("t", "agent", 2), 70.0)
    agent.check(Task("t", "agent", 2), 80.0)


def test_the_names_of_limits_are_those_of_sandboxes():
    assert set(harness_file.LIMITS) < set(harness_file.Limits.__dataclass_fields__)


def test_the_repository_of_a_task_has_one_commit_and_no_other_history(tmp_path):
    # SWE-bench_Pro-os#93, SWE-bench#465: agents found the solution by `git log --all` and in what was unreachable.
    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split("\n")[:-1]

    (tmp_path / "a.py").write_text("a = 1\n")
    subprocess.run(["sh", "-c", agent.GIT], cwd=tmp_path, check=True, capture_output=True)
    assert len(git("log", "--all", "--format=%s")) == 1
    assert git("ls-files") == ["a.py"]
    for further in (("remote",), ("tag",), ("stash", "list"), ("fsck", "--unreachable", "--no-reflogs")):
        assert git(*further) == []
