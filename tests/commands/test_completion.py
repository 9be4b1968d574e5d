"""Shells complete commands, options and choices."""

import shutil
import subprocess

import pytest

from asyncrl.cli import commands, main
from asyncrl.commands.completion import SHELLS


@pytest.fixture
def script(capsys):
    def make(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return make


def completed(script, *words):
    """Return what bash offers for the last of these words."""
    line = f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
    done = subprocess.run(
        ["bash", "-c", f'{line}$(complete -p asyncrl | grep -o "_shtab[a-z_]*")\nprintf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["asyncrl", "mon"], ["monitor"]),
        (["asyncrl", "runs", "pr"], ["prune"]),
        (["asyncrl", "runs", "prune", "--ol"], ["--older-than"]),
        (["asyncrl", "completion", "f"], ["fish"]),
    ],
)
def test_bash_completes_commands_options_and_choices(script, words, offered):
    assert completed(script("bash"), *words) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_with_every_command(script, shell):
    text = script(shell)
    assert [command for command in commands() if command not in text] == []
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=text, text=True, check=True)
