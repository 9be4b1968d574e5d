"""`asyncrl eval`: which of its options go together, before anything is loaded or started."""

import argparse

import pytest

from asyncrl.commands import eval as command
from asyncrl.errors import ConfigError


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    return parser.parse_args(["eval", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model",), "give one of --env NAME, --harness NAME, --suite NAME and --on SET"),
        (("model", "--on", "gsm8k", "--env", "gridworld"), "give one of"),
        (("model", "--env", "gridworld", "--limit", "3"), "--limit goes with --on"),
        (("model", "--suite", "cpu", "--max-tokens", "3"), "--max-tokens goes with --on"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        command.run(parsed(*words))


def test_data_sets_are_named_with_their_files():
    assert command._sets("gsm8k=a=b.jsonl") == {"gsm8k": "a=b.jsonl"}
    assert command._sets("gsm8k, svamp=x.jsonl") == {"gsm8k": "", "svamp": "x.jsonl"}


@pytest.mark.parametrize("given", ["", "gsm8k,", "gsm8k,gsm8k", "gsm8k=", "=a.jsonl"])
def test_a_list_of_data_sets_that_says_too_little_is_refused(given):
    with pytest.raises(ConfigError, match="must be different sets"):
        command._sets(given)
