"""The critic learns values on its own engine or on the policy's trunk, alone at first if asked."""

import pytest
import torch

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from tests.train.factories import group
from tests.train.one_step import Learner, snapshot

TRUNKS = ["own", "shared"]


def learner(model, trunk, **critic):
    value = {"trunk": trunk, "learning_rate": 1e-2, **critic}
    return Learner(model, {"preset": "ppo", "value": value})


def certain_batch():
    """Every episode earns 1, so every state is worth 1."""
    return build_step_batch([group("t0", [1.0, 1.0, 1.0]), group("t1", [1.0, 1.0], turns=1)], 0, 0)


def values(found, batch):
    rows = pad_rows(batch, range(len(batch.trajectories)))
    with torch.no_grad():
        return found.auxiliary.parts["critic"].outputs(found.engine, rows.token_ids, rows.mask)["values"][
            rows.mask
        ]


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_new_critic_values_everything_at_zero(tiny_model, trunk):
    assert torch.equal(values(learner(tiny_model, trunk), certain_batch()), torch.zeros(24))


@pytest.mark.slow
@pytest.mark.parametrize("trunk", TRUNKS)
def test_values_approach_a_certain_return(tiny_model, trunk):
    found = learner(tiny_model, trunk)
    batch = certain_batch()
    errors = [found.step(batch).metrics["value/error"] for _ in range(12)]
    assert errors[0] == pytest.approx(1.0)
    assert errors[-1] < 0.75 * errors[0]


@pytest.mark.parametrize("trunk", TRUNKS)
def test_while_it_warms_up_only_the_critic_learns(tiny_model, trunk):
    found = learner(tiny_model, trunk, warmup_steps=1)
    before = snapshot(found.engine)
    report = found.step(certain_batch())
    after = snapshot(found.engine)
    assert report.metrics["grad_norm"] > 0
    for name, tensor in before.items():
        if "value_head" not in name:
            assert torch.equal(tensor, after[name]), name
    assert values(found, certain_batch()).abs().min() > 0


def test_while_an_own_critic_warms_up_no_loss_of_the_policy_is_computed(tiny_model, monkeypatch):
    with_gradient = []
    compute = TrainEngine.outputs

    def outputs(engine, *rest, **options):
        with_gradient.append(torch.is_grad_enabled())
        return compute(engine, *rest, **options)

    found = learner(tiny_model, "own", warmup_steps=1)
    monkeypatch.setattr(TrainEngine, "outputs", outputs)
    found.step(certain_batch())
    assert with_gradient == [False], "before the step, for the ratios"
    found.step(build_step_batch([group("t0", [0.0, 1.0, 0.0])], 1, 1))
    assert with_gradient == [False, False, True]


@pytest.mark.parametrize("trunk", TRUNKS)
def test_after_the_warm_up_the_policy_learns_too(tiny_model, trunk):
    found = learner(tiny_model, trunk, warmup_steps=1)
    before = snapshot(found.engine)
    batch = build_step_batch([group("t0", [0.0, 1.0, 0.0]), group("t1", [1.0, 0.0], turns=1)], 1, 1)
    found.step(batch)
    after = snapshot(found.engine)
    assert any(not torch.equal(before[name], after[name]) for name in before if "value_head" not in name)


def test_an_own_critic_leaves_the_policys_gradient_to_the_policy(tiny_model):
    """The value loss of a shared trunk reaches the policy's weights; that of an own one does not."""
    norms = {}
    for trunk in TRUNKS:
        found = Learner(
            tiny_model,
            {"preset": "ppo", "loss": {"name": "ppo_clip"}, "value": {"coef": 10.0, "trunk": trunk}},
        )
        found.step(certain_batch())
        norms[trunk] = float(found.engine.gradients[0].norm())
    assert norms["shared"] > 2 * norms["own"]


def test_published_weights_leave_the_value_head_out(tiny_model):
    alone = Learner(tiny_model, {"preset": "grpo"})
    shared = learner(tiny_model, "shared")
    assert set(snapshot(shared.engine)) == set(snapshot(alone.engine))


def test_turn_level_gae_reads_values_where_turns_begin(tiny_model):
    report = Learner(tiny_model, {"preset": "ppo_turn", "value": {"learning_rate": 1e-2}}).step()
    assert report.metrics["value/error"] > 0
    assert report.metrics["grad_norm"] > 0


@pytest.mark.parametrize("preset", ["ppo", "archer"])
def test_several_steps_of_the_critic_on_a_batch_are_steps_of_it_alone_before_the_policys(tiny_model, preset):
    """Each goes towards targets of the critic as the step before has left it."""

    def learned(batches, **value):
        value = {"trunk": "own", "learning_rate": 1e-2, **value}
        found = Learner(tiny_model, {"preset": preset, "value": value})
        for step in range(batches):
            report = found.step(build_step_batch(groups, step, step))
        critic = found.auxiliary.parts["critic"].engine
        weights = [snapshot(found.engine), snapshot(critic)]
        return report.metrics, weights

    groups = [group("t0", [0.0, 1.0, 0.0]), group("t1", [1.0, 0.0], turns=1)]
    alone, expected = learned(3, warmup_steps=2)
    ahead, found = learned(1, steps=3)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], tensor) for name, tensor in other.items())
    assert ahead["value/error"] == alone["value/error"]
