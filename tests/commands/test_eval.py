"""`asyncrl eval`: which of its options go together, before anything is loaded or started."""

import argparse
import json
from pathlib import Path

import pytest

from asyncrl.commands import eval as command
from asyncrl.errors import ConfigError, InputError
from asyncrl.run.checkpoints import MARKER, STATE, VALUES


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    return parser.parse_args(["eval", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs/none",), r"eval: there is no run 'runs/none' here; give one of --env"),
        (("model",), r"give one of --env .* a run's folder \(runs/NAME\), or --recipe RECIPE, needs none"),
        (("model", "other", "--recipe", "gridworld_grpo"), "one checkpoint at a time without --suite"),
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
    assert command._sets("gsm8k=a=b.jsonl") == {"gsm8k": "a=b.jsonl"}
    assert command._sets("gsm8k, svamp=x.jsonl") == {"gsm8k": "", "svamp": "x.jsonl"}


@pytest.mark.parametrize("given", ["", "gsm8k,", "gsm8k,gsm8k", "gsm8k=", "=a.jsonl"])
def test_a_list_of_data_sets_that_says_too_little_is_refused(given):
    with pytest.raises(ConfigError, match="must be different sets"):
        command._sets(given)


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run with two checkpoints."""
    config = {
        "model": {"path": "base"},
        "env": {"name": "gridworld", "config": {"size": 4}},
        "eval": {"tasks": 7},
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    for step in (2, 4):
        state = tmp_path / "run" / "checkpoints" / f"step-{step:06d}" / STATE
        state.mkdir(parents=True)
        (state / VALUES).write_text("{}")
        (state.parent / MARKER).write_text("{}")
    return tmp_path / "run"


@pytest.fixture
def played(monkeypatch):
    """Return what is to be played instead of playing it: environment, its settings, model, and number of tasks."""
    found = []

    def note(config, folder, checkpoint, env, tasks, samples):
        found.append((env, config.env.config, Path(config.model.path).name, tasks))
        raise ConfigError("nothing is played here")

    monkeypatch.setattr("asyncrl.launch.checks.check.check_evaluation", lambda config: [])
    monkeypatch.setattr("asyncrl.launch.evaluation.evaluate.play_checkpoint", note)
    return found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("gridworld", {"size": 4}, "step-000004", 7)),
        (("--tasks", "3"), ("gridworld", {"size": 4}, "step-000004", 3)),
        (("env.config.size=5",), ("gridworld", {"size": 5}, "step-000004", 7)),
        (("--env", "countdown"), ("countdown", {}, "step-000004", command.TASKS)),
    ],
)
def test_a_run_is_evaluated_on_its_own_tasks_unless_others_are_named(run, played, words, expected):
    with pytest.raises(ConfigError, match="nothing is played here"):
        command.run(parsed(str(run), *words))
    assert played == [expected]


def test_a_checkpoint_is_evaluated_as_its_run(run, played):
    with pytest.raises(ConfigError, match="nothing is played here"):
        command.run(parsed(str(run / "checkpoints" / "step-000002")))
    assert played == [("gridworld", {"size": 4}, "step-000002", 7)]


def test_a_run_without_a_checkpoint_is_told_to_have_none(run):
    for marker in run.glob(f"checkpoints/*/{MARKER}"):
        marker.unlink()
    with pytest.raises(InputError, match="has no complete checkpoint yet"):
        command.run(parsed(str(run)))
