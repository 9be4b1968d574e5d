"""Every preset takes a real optimizer step with whatever models it needs, whatever the cut into micro-batches."""

import json

import pytest
import torch

from asyncrl.algo.presets import known_presets
from asyncrl.extensions.simulation.hardware import operations
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.counted_passes import CountedPasses
from tests.train.factories import batch_of_groups
from tests.train.on_a_gpu import Recorded
from tests.train.one_step import Learner, near_policy, snapshot
from tests.train.one_step_presets import CHANGES, run

SAME_AS_TEACHER = {"opd", "opd_full"}
"""The teacher is the policy itself here, so on-policy distillation has nothing to change."""


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(known_presets()))
def test_every_preset_takes_a_finite_step_that_changes_the_weights(tiny_model, preset, monkeypatch):
    learner, recorded = Learner(tiny_model, {"preset": preset}), Recorded(monkeypatch)
    passes = CountedPasses(monkeypatch)
    batch = build_step_batch(near_policy(learner.engine, batch_of_groups()), 0, 0)
    before = snapshot(learner.engine)
    report = learner.step(batch, micro_batch_tokens=60)
    after = snapshot(learner.engine)
    assert report.skipped == ""
    assert operations(learner.config) == pytest.approx(passes.operations(learner))
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    if preset in SAME_AS_TEACHER:
        assert report.metrics["grad_norm"] < 0.2
    else:
        assert report.metrics["grad_norm"] > 0
        assert any(not torch.equal(before[name], after[name]) for name in before)
    policy, value = recorded.losses_on_a_gpu(monkeypatch)
    assert policy.device.type == "cuda"
    assert (value is None) == ("critic" not in learner.auxiliary.parts)
    assert value is None or value.device.type == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", ["grpo", "ppo_ewma", "decoupled_ppo", "sat", "vcpo", "igpo", "ppo", "sdpo"]
)
def test_several_optimizer_steps_take_the_passes_that_a_plan_counts(tiny_model, preset, monkeypatch):
    learner = Learner(tiny_model, {"preset": preset}, train={"num_minibatches": 2, "zero_stage": 0})
    passes = CountedPasses(monkeypatch)
    groups = near_policy(learner.engine, batch_of_groups())
    assert learner.step(build_step_batch(groups, 0, 0), num_minibatches=2).skipped == ""
    assert operations(learner.config) == pytest.approx(passes.operations(learner))


CUT_MATTERS = [
    {"preset": "sat", "proximal": {"name": "behavior"}},
    {"preset": "sat", "loss": "tests.algo.own_parts:adaptive_region", "proximal": {"name": "behavior"}},
    {"preset": "grpo", "corrections": ["tests.algo.own_parts:second_moment"]},
    {"preset": "ppo_ewma", "proximal": "tests.algo.own_parts:averaged"},
    {"preset": "online_dpo"},
    {"preset": "ppo", "value": {"trunk": "shared"}},
    {"preset": "grpo", "denominator": "kept", "corrections": [{"name": "icepop", "low": 0.98, "high": 1.02}]},
    {"preset": "optimal_token_baseline"},
    {"preset": "ppo_ewma"},
    {"preset": "opd_full", "entropy_coef": 0.01},
    {"preset": "sdpo"},
    {"preset": "sdpo", "loss": "opd_sampled"},
    {"preset": "vcpo"},
    {"preset": "vapo"},
    {"preset": "top_entropy"},
    {"preset": "top_entropy", "corrections": ["top_entropy_turns"]},
    {"preset": "d3s"},
    {"preset": "atpo"},
    {"preset": "clip_cov", "loss": {"share": 0.1, "cov_low": 0.0, "cov_high": 50.0}},
    {"preset": "kl_cov", "loss": {"share": 0.1}},
    {"preset": "grpo", "denominator": "kept", "corrections": [{"name": "opsm", "delta": 0.0}]},
    {"preset": "grpo", "kl": {"coef": 0.1, "unbiased": True}},
]


@pytest.mark.slow
@pytest.mark.parametrize("algo", CUT_MATTERS, ids=lambda algo: algo["preset"])
def test_the_cut_into_micro_batches_does_not_change_the_gradient(tiny_model, algo):
    gradients = []
    for budget in (10**6, 100, 60):
        learner = Learner(tiny_model, algo)
        batch = build_step_batch(near_policy(learner.engine, batch_of_groups()), 0, 0)
        learner.step(batch, micro_batch_tokens=budget)
        gradients.append(learner.engine.gradients[0])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def reported(tiny_model, two_ranks, tmp_path_factory):
    """What two ranks reported of two steps of each objective."""
    out = tmp_path_factory.mktemp("ranks") / "reports.json"
    two_ranks.call("tests.train.one_step_presets", tiny_model, str(out))
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("preset", CHANGES)
def test_two_ranks_train_any_objective_as_one_does(tiny_model, reported, preset):
    alone, _ = run(tiny_model, preset)
    assert set(reported[preset][0]) == set(alone[0])
    for one, other in zip(alone, reported[preset], strict=True):
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
