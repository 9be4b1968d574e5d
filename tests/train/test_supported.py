"""Objectives the trainer cannot serve are refused before anything starts; the others train a step."""

import subprocess
import sys

import pytest

from asyncrl.algo.presets import PRESETS
from asyncrl.errors import ConfigError
from asyncrl.train.supported import check_supported


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ({"preset": "vapo"}, "values"),
        ({"preset": "opd"}, "teacher"),
        ({"preset": "ppo_ewma"}, "needs copies of past weights"),
        ({"preset": "grpo", "denominator": "kept"}, "algo.denominator"),
        ({"preset": "remax"}, "greedy"),
    ],
)
def test_what_the_trainer_lacks_is_named(algo, message):
    with pytest.raises(ConfigError, match=message):
        check_supported(algo)


def test_the_check_loads_no_torch():
    code = "import sys, asyncrl.train.supported; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def supported_presets():
    found = []
    for name in sorted(PRESETS):
        try:
            check_supported({"preset": name})
        except ConfigError:
            continue
        found.append(name)
    return found


OTHER_BATCH = {
    "gdpo": "needs named reward components, which the fixed batch has none of",
    "mis": "rejects the whole fixed batch, whose behavior policy is far from the model",
    "sat": "needs a reference model beside the policy",
}


def test_most_presets_are_supported():
    assert len(supported_presets()) >= 30
    assert {"grpo", "dapo", "gspo", "cispo", "decoupled_ppo", "icepop", "m2po"} <= set(supported_presets())


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in supported_presets() if name not in OTHER_BATCH])
def test_every_supported_preset_takes_a_finite_step_that_changes_the_weights(tiny_model, preset):
    import torch

    from tests.train.one_step import make_engine, snapshot, step_once

    engine = make_engine(tiny_model)
    before = snapshot(engine)
    report = step_once(engine, micro_batch_tokens=60, preset=preset)
    after = snapshot(engine)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert report.metrics["grad_norm"] > 0
