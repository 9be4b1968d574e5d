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
        (
            ("model",),
            r"give one of --env NAME, --harness NAME, --suite NAME and --on SET; a run's folder \(runs/NAME\), or "
            "--recipe RECIPE, needs none",
        ),
        (("model", "--env", "gridworld", "--harness", "bash"), "give one of"),
        (
            ("model", "--env", "gridworld", "--tasks", "folder"),
            "--tasks: must be a folder or an environment with",
        ),
        (
            ("model", "other", "--recipe", "gridworld_grpo"),
            "one checkpoint at a time without --suite and --on; ",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        command.run(parsed(*words))


def test_without_other_kinds_of_evaluations_the_command_names_none(monkeypatch, capsys):
    monkeypatch.setattr(command, "evaluation_kinds", list)
    monkeypatch.setattr(command, "rows", lambda seam: ())
    with pytest.raises(ConfigError, match="give one of --env NAME and --harness NAME; a run's folder"):
        command.run(parsed("model"))
    with pytest.raises(ConfigError, match=r"^eval: one checkpoint at a time$"):
        command.run(parsed("model", "other", "--recipe", "gridworld_grpo"))
    with pytest.raises(SystemExit):
        parsed("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "episodes a task (1); pass@k" in said
    assert "--suite" not in said


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
