"""Optional features in the trainer's loop: their states by name, what survives going back, and who is called."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.import_path import load_object
from asyncrl.train.loop.callbacks import Recording, StopFile, TrainerCallback, load_states, states
from asyncrl.train.loop.configured import FEATURES, configured
from tests.train.contexts import context

ROOT = Path(__file__).parent.parent.parent


class Counting(TrainerCallback):
    """Keeps a number in its state."""

    def __init__(self, name, count, survives=False):
        self.name, self.count, self.survives_going_back = name, count, survives

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_states_of_several_features_are_told_apart_by_name_and_come_back():
    saved = states([Counting("one", 1), TrainerCallback(), Counting("two", 2)])
    assert saved == {"one": {"count": 1}, "two": {"count": 2}}
    again = [Counting("two", 0), Counting("one", 0), Counting("three", 3)]
    load_states(again, saved, going_back=False)
    assert [one.count for one in again] == [2, 1, 3]


def test_what_survives_going_back_stays_as_it_is_then_and_comes_back_with_a_checkpoint():
    saved = {"kept": {"count": 1}, "given_up": {"count": 1}}
    both = [Counting("kept", 5, survives=True), Counting("given_up", 5)]
    load_states(both, saved, going_back=True)
    assert [one.count for one in both] == [5, 1]
    load_states(both, saved, going_back=False)
    assert [one.count for one in both] == [1, 1]


def test_a_recipe_has_the_callbacks_that_its_settings_ask_for_and_other_ranks_the_collective_ones():
    def names(first, **sections):
        config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}} | sections)
        engine = SimpleNamespace(rank=0 if first else 1)
        made = configured(context(config, build_objective(config.algo), engine))
        return [one.name for one in made if one.name]

    assert names(True) == []
    every = {
        "train": {"complete_groups": True, "replay_groups": 2},
        "curriculum": {"name": "vade"},
        "sft_phase": {"every": 3},
    }
    assert names(True, **every) == ["successes", "replay", "sft_phase"]
    assert names(False, **every) == ["sft_phase"]


@pytest.mark.parametrize("path", sorted({p for one in FEATURES for p in (one.path, one.prepare) if p}))
def test_every_feature_of_the_table_has_its_factory(path):
    assert callable(load_object("trainer", path))


def test_steps_are_handed_to_functions_and_a_file_ends_a_run(tmp_path):
    seen = []
    recording = Recording(
        lambda version, metrics: seen.append((version, metrics)), lambda *given: seen.append(given)
    )
    recording.committed(3, [], None)
    recording.recorded(3, {"a": 1})
    assert seen == [(3, [], None), (3, {"a": 1})]
    stop = StopFile(tmp_path / "stop")
    assert not stop.asked_to_stop()
    (tmp_path / "stop").touch()
    assert stop.asked_to_stop()


def test_no_callback_hides_a_call_of_the_loop_behind_a_value_of_its_own():
    calls = {
        name for name, value in vars(TrainerCallback).items() if callable(value) and not name.startswith("__")
    }
    assert {"trained", "batch", "after_step"} <= calls
    files = [
        file
        for folder in ("asyncrl/train", "asyncrl/extensions", "services/trainer")
        for file in (ROOT / folder).rglob("*.py")
    ]
    for file in files:
        for made in ast.walk(ast.parse(file.read_text())):
            if isinstance(made, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "TrainerCallback" for base in made.bases
            ):
                stored = {
                    node.attr
                    for node in ast.walk(made)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "self"
                }
                assert not stored & calls, f"{file.name}: {made.name}"
