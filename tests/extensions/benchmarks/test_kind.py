"""Options of `asyncrl eval` for suites and data sets: which go together, before anything is loaded or started."""

import pytest

from asyncrl.commands import eval as command
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks import kind
from tests.commands.test_eval import parsed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model", "--on", "gsm8k", "--env", "gridworld"), "give one of"),
        (("model", "--env", "gridworld", "--limit", "3"), "--limit goes with --on"),
        (("model", "--suite", "cpu", "--max-tokens", "3"), "--max-tokens goes with --on"),
        (("model", "--on", "gsm8k", "--limit", "-3"), "--limit: must be at least 1, got -3"),
        (("model", "--on", "gsm8k", "--samples", "0"), "--samples: must be at least 1, got 0"),
        (("model", "--on", "gsm8k", "--temperature", "-1"), "--temperature: must be at least 0, got -1"),
        (("model", "--on", "gsm8k", "--temperature", "nan"), "--temperature: must be at least 0, got nan"),
        (("model", "--env", "gridworld", "--temperature", "1"), "--temperature goes with --on"),
        (("model", "--on", "gsm8k", "--fewshot", "3"), "--fewshot goes with --on lm-eval/TASK"),
        (
            ("model", "--on", "lm-eval/gsm8k", "--samples", "3"),
            "--samples does not go with --on lm-eval/TASK",
        ),
        (("model", "--on", "lm-eval/gsm8k,svamp"), "'svamp' is no task of lm-eval; give data sets and tasks"),
        (
            ("model", "--on", "inspect/mmlu,svamp"),
            "'svamp' is no task of inspect-ai; give data sets and tasks",
        ),
        (("model", "--on", "svamp,inspect/mmlu"), "'svamp' is no task of inspect-ai"),
        (("model", "--on", "inspect/none.py@t"), "--on inspect/none.py@t: there is no file 'none.py'"),
        (("model", "--on", "inspect/mmlu=x.jsonl"), "a task of inspect-ai reads its own rows"),
        (("model", "--on", "inspect/mmlu", "--fewshot", "3"), "--fewshot goes with --on lm-eval/TASK"),
        (("model", "--on", "inspect/mmlu", "--samples", "0"), "--samples: must be at least 1, got 0"),
        (
            ("model", "--on", "inspect/mmlu", "--most-thinking", "9"),
            "--most-thinking does not go with --on inspect/TASK",
        ),
        (
            ("model", "--on", "lm-eval/gsm8k", "--temperature", "0"),
            "--temperature does not go with --on lm-eval/TASK",
        ),
        (("model", "--on", "gsm8k", "--price", "1,2"), "--price goes with several budgets"),
        (("model", "--env", "gridworld", "--price", "1,2"), "--price goes with --on"),
        (("model", "--on", "lm-eval/gsm8k=none.jsonl"), "--on lm-eval/gsm8k: there is no file 'none.jsonl'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        command.run(parsed(*words))


def test_data_sets_are_named_with_their_files():
    assert kind._sets("gsm8k=a=b.jsonl") == {"gsm8k": "a=b.jsonl"}
    assert kind._sets("gsm8k, svamp=x.jsonl") == {"gsm8k": "", "svamp": "x.jsonl"}


@pytest.mark.parametrize("given", ["", "gsm8k,", "gsm8k,gsm8k", "gsm8k=", "=a.jsonl"])
def test_a_list_of_data_sets_that_says_too_little_is_refused(given):
    with pytest.raises(ConfigError, match="must be different sets"):
        kind._sets(given)


def test_the_help_of_shared_options_says_what_they_are_with_a_suite(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "episodes a task (1), not with --suite; pass@k" in said
    assert "With --suite or --on several checkpoints are compared" in said
