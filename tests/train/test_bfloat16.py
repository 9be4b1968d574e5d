"""Training bfloat16 weights: gradients, masters and averages are float32, checkpoints continue, poison is left out."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.extensions.published.average import AveragedPolicy
from asyncrl.extensions.published.proximal.ewma import update_ewma
from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.full_state import gather_state
from asyncrl.train.models import token_scores
from asyncrl.train.models.loading import load_frozen
from asyncrl.train.parts.frozen import FrozenPolicy
from asyncrl.train.step.step_batch import build_step_batch
from tests.train import one_step
from tests.train.factories import batch_of_groups, group
from tests.train.gradients import TIMES, VOCAB_SIZE, load, save_model, summed_in_float32, zero_gradient
from tests.train.one_step import LEARNING_RATE, snapshot, step_once

STAGES = [0, 1, 2, 3]


make_engine = partial(one_step.make_engine, dtype="bfloat16")


def worst(one, other):
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    save_model("tied", folder / "tied")
    return folder


def relative_error(found, expected):
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected)


@pytest.mark.parametrize("stage", STAGES)
def test_micro_batches_are_summed_in_float32(folder, stage):
    path = str(folder / "tied")
    found = zero_gradient(load(path, dtype="bfloat16"), stage, 40, "bfloat16", TIMES)
    # In bfloat16 it would be 0.005.
    assert relative_error(found, summed_in_float32(path, 40, 1, TIMES)) < 1e-6


@pytest.mark.slow
def test_ranks_add_their_gradients_in_float32(folder, two_ranks):
    two_ranks.call("tests.train.gradients", str(folder))
    expected = summed_in_float32(str(folder / "tied"), 40, 2, TIMES)
    for stage in STAGES:
        assert relative_error(load_file(folder / f"bfloat16-{stage}.safetensors"), expected) < 1e-6


def test_many_chunks_cost_the_gradient_of_the_vocabulary_projection_no_digits(folder, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCAB_SIZE, (4, 60), generator=generator)
    mask = torch.ones(4, 60, dtype=torch.bool)

    def error(chunk_tokens):
        monkeypatch.setattr(token_scores, "CHUNK_LOGITS", chunk_tokens * VOCAB_SIZE)
        found = []
        for policy in (load(str(folder / "tied"), dtype="bfloat16"), load(str(folder / "tied"))):
            policy(ids, mask, 1.0)["logp"].sum().backward()
            found.append(policy.model.lm_head.weight.grad.float())
        return float((found[0] - found[1]).norm() / found[1].norm())

    assert error(2) < 1.05 * error(1000)


@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_continues_as_if_nothing_had_happened(tiny_model, tmp_path, stage):
    engine = make_engine(tiny_model, stage)
    step_once(engine)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    saver.save(1, {})
    saver.wait()
    step_once(engine)
    other = make_engine(tiny_model, stage)
    Checkpointer(tmp_path, other, tiny_model).load(checkpoint_path(tmp_path, 1))
    step_once(other)
    assert worst(snapshot(other), snapshot(engine)) == 0
    assert worst(gather_state(other), gather_state(engine)) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_poisoned_group_is_left_out(tiny_model, stage):
    good = [g for g in batch_of_groups() if g.task.id != "t1"]
    poisoned = group("t1", [1e30, -1e30, 1e30, 0.0])
    engine, alone = make_engine(tiny_model, stage), make_engine(tiny_model, stage)
    report = step_once(engine, 60, build_step_batch([*good, poisoned], 0, 0), preset="dr_grpo")
    expected = step_once(alone, 60, build_step_batch(good, 0, 0), preset="dr_grpo")
    assert list(report.left_out) == [1]
    assert report.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-3)
    assert worst(gather_state(engine), gather_state(alone)) < 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_a_divided_step_is_that_of_the_mean(tiny_model, stage):
    norms = []
    for times in (1, 2):
        engine = make_engine(tiny_model, stage)
        ids, mask = torch.arange(10, 30).view(2, 10), torch.ones(2, 10, dtype=torch.bool)
        for number in range(times):
            engine.backward(engine.logp(ids, mask, 1.0).mean(), last=number == times - 1)
        norms.append((engine.step(LEARNING_RATE, float(times)), gather_state(engine)))
    assert norms[0][0] == pytest.approx(norms[1][0], rel=1e-5)
    assert worst(norms[0][1], norms[1][1]) < 1e-6


@pytest.mark.parametrize("stage", [0, 3])
def test_an_average_keeps_steps_too_small_for_bfloat16(tiny_model, stage):
    engine = make_engine(tiny_model, stage)
    average = AveragedPolicy(load_frozen(tiny_model, "bfloat16"), beta=0.5)
    expected = [weight.double() for weight in engine.master_weights()]
    start = [weight.clone() for weight in expected]
    total = 1.0
    for _ in range(3):
        engine.backward(
            engine.logp(torch.arange(10, 30).view(2, 10), torch.ones(2, 10, dtype=torch.bool), 1.0).mean(),
            True,
        )
        engine.step(1e-6)
        average.follow(engine, 1.0, 1.0)
        total = update_ewma(expected, engine.master_weights(), 0.5, total)
    moved = max(float((one - other).abs().max()) for one, other in zip(expected, start, strict=True))
    assert 1e-6 < moved < 3e-6
    for mean, right in zip(average.exact, expected, strict=True):
        assert float((mean - right).abs().max()) < 0.1 * moved
    for parameter, mean in zip(average.model.model.parameters(), average.exact, strict=True):
        assert torch.equal(parameter, mean.bfloat16())
    again = AveragedPolicy(load_frozen(tiny_model, "bfloat16"), beta=0.5)
    again.load_state_dict(average.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(again.exact, average.exact, strict=True))
    assert worst(again.model.state_dict(), average.model.state_dict()) == 0


def test_a_refreshed_reference_is_the_trained_policy_to_the_last_bit(tiny_model):
    engine = make_engine(tiny_model, 1)
    reference = FrozenPolicy(load_frozen(tiny_model, "bfloat16"), refresh_every=1)
    step_once(engine)
    reference.after_step(engine, 1)
    ids, mask = torch.arange(10, 30).view(2, 10), torch.ones(2, 10, dtype=torch.bool)
    with torch.no_grad():
        ours = reference.outputs(engine, ids, mask, 1.0, ())["logp"]
        assert torch.equal(ours, engine.logp(ids, mask, 1.0))
