"""Published speed-ups are simulated from what was published and what is said to be assumed."""

import json
from dataclasses import replace

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.simulation import published
from asyncrl.extensions.simulation.published import SETUPS, as_text, compare

SMALL = replace(SETUPS[0], slices=32, groups=256)
"""One GPU that trains and three that generate 8 groups of 16."""


@pytest.mark.slow
def test_a_set_up_is_simulated_under_both_schedules_and_shown_with_its_assumptions(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(published, "SETUPS", [SMALL])
    monkeypatch.setattr(published.compare, "__defaults__", (3,))
    out = tmp_path / "published.json"
    assert main(["plan", "published", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    (found,) = json.loads(out.read_text()).values()
    assert found["published_speedup"] == [2.77, 2.77]
    assert found["simulated_speedup"] == pytest.approx(
        found["simulated_synchronous_step_s"] / found["simulated_asynchronous_step_s"], rel=0.01
    )
    # Nobody waits for the longest answer of a step any more.
    assert found["simulated_speedup"] > 1.5
    assert f"| 2.77 | {found['simulated_speedup']:.2f} |" in printed
    assert f"- **{SMALL.name}** assumes: 512 groups of 16" in printed


@pytest.mark.slow
def test_published_seconds_of_training_are_taken_as_they_are():
    given = compare(replace(SMALL, train_s=(50.0, 200.0)), steps=3)
    assert given.synchronous.trainer.busy * given.synchronous.step_s == pytest.approx(50.0)
    assert given.asynchronous.step_s == pytest.approx(200.0, rel=0.05)
    assert not given.reproduced
    shown = as_text([replace(given, setup=replace(given.setup, differs="For this reason."))])
    assert "| no |" in shown
    assert shown.endswith("For this reason.")


def test_a_model_that_does_not_fit_its_slice_is_refused():
    with pytest.raises(ConfigError, match="Qwen3-32B does not fit 4 GPUs"):
        compare(replace(SMALL, model="Qwen/Qwen3-32B"))


def test_every_set_up_says_what_it_assumes_and_cuts_its_cluster_evenly():
    for setup in SETUPS:
        assert setup.assumed
        assert setup.gpus % setup.slices == setup.trainer_gpus % setup.slices == 0
        assert setup.groups % setup.slices == 0
        assert (setup.gpus - setup.trainer_gpus) // setup.slices % setup.tensor_parallel == 0
