"""A callback of another installed package takes part in the trainer's loop: the one of the tutorial."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.errors import ConfigError
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.loop.configured import configured
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from tests.docs.blocks import blocks
from tests.train.contexts import context
from tests.train.one_step import make_engine
from tests.train.scripted_run import Scripted, groups_at


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which the tutorial's package is installed, from what its page has the reader save."""
    folder = tmp_path_factory.mktemp("extension")
    for block in blocks("docs/tutorial/9-extension.md"):
        if name := block.said("save as"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(block.text)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
        "--no-index",
        "--no-deps",
    ]
    target = folder / "installed"
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(target), str(folder / "solved_tasks")],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


@pytest.fixture
def extended(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    sys.modules.pop("solved_tasks", None)


def recipe(**callbacks):
    return parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "train": {"num_steps": 2, "max_logp_error": 0},
            "extensions": {"trainer_callbacks": callbacks},
        }
    )


def trainer(config, engine, script, seen):
    objective = build_objective(config.algo)
    auxiliary = AuxiliaryModels(objective)
    made = configured(context(config, objective, engine, auxiliary))
    callbacks = [*made, Recording(lambda _, metrics: seen.append(metrics))]
    return Trainer(config, engine, objective, auxiliary, script, script, None, callbacks)


def test_a_callback_of_another_package_has_metrics_and_a_state_in_checkpoints(extended, tiny_model):
    config, seen = recipe(solved_tasks={"least_reward": 1.0}), []
    assert check_objective(config)
    engine = make_engine(tiny_model, 1)
    first = trainer(config, engine, Scripted([groups_at(0), groups_at(1)]), seen)
    assert first.run() == 2
    assert Path(sys.modules["solved_tasks"].__file__).parent == extended
    assert [metrics["solved_tasks"] for metrics in seen] == [2, 2]
    state = first.state_dict()
    assert json.loads(json.dumps(state["solved_tasks"])) == {"solved": ["a", "b"]}
    again = trainer(config, engine, Scripted([[], []]), [])
    again.load_state_dict(state)
    assert again.state_dict()["solved_tasks"] == {"solved": ["a", "b"]}


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (
            {"solved_task": {}},
            "extensions.trainer_callbacks.solved_task: no installed package has this entry point in the group "
            "'asyncrl.trainer_callbacks'; did you mean 'solved_tasks'? Allowed: solved_tasks",
        ),
        (
            {"solved_tasks": {"least": 1.0}},
            "extensions.trainer_callbacks.solved_tasks.least: solved_tasks:solved_tasks has no such parameter",
        ),
        (
            {"solved_tasks": {"least_reward": "high"}},
            "extensions.trainer_callbacks.solved_tasks.least_reward: got 'high', allowed: float",
        ),
    ],
)
def test_what_is_not_installed_or_not_taken_is_refused_before_anything_starts(extended, callbacks, message):
    with pytest.raises(ConfigError) as caught:
        check_objective(recipe(**callbacks))
    assert str(caught.value).startswith(message)
    assert "solved_tasks" not in sys.modules


def test_an_extension_that_is_not_installed_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"trainer_callbacks\.solved_tasks: no installed package has"):
        check_objective(recipe(solved_tasks={}))
