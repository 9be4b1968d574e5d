"""A group that makes the loss or gradient NaN is left out, kept and can be replayed; the others train as if alone."""

import numpy as np
import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.data.codec import encode_group
from asyncrl.errors import StopError
from asyncrl.train.features.poison import PoisonFolder
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.weights.publish import PublishReport
from tests.train.factories import batch_of_groups, group
from tests.train.one_step import make_engine, snapshot, step_once

HUGE = 1e30


def worst(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def poisoned(name="t1"):
    """A group whose gradient is too large for its norm to be a float32."""
    return group(name, [HUGE, -HUGE, HUGE, 0.0])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_others_train_as_if_the_poisoned_group_had_not_been_there(tiny_model, stage):
    good = [g for g in batch_of_groups() if g.task.id != "t1"]
    engine, alone = make_engine(tiny_model, stage), make_engine(tiny_model, stage)
    for _ in range(2):
        report = step_once(engine, 60, build_step_batch([*good, poisoned()], 0, 0), preset="dr_grpo")
        expected = step_once(alone, 60, build_step_batch(good, 0, 0), preset="dr_grpo")
        assert list(report.left_out) == [1]
        assert expected.left_out == {}
        assert report.num_tokens == expected.num_tokens
    assert report.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-5)
    assert worst(snapshot(engine), snapshot(alone)) < 1e-6


def test_a_step_of_nothing_but_poison_changes_nothing(tiny_model):
    engine = make_engine(tiny_model, 1)
    before = snapshot(engine)
    report = step_once(
        engine, batch=build_step_batch([poisoned("t0"), poisoned("t1")], 0, 0), preset="dr_grpo"
    )
    assert (sorted(report.left_out), report.num_tokens) == ([0, 1], 0)
    assert report.skipped == "the loss or gradient was not finite"
    assert worst(snapshot(engine), before) == 0


class Script:
    """Gives one batch and records what is asked."""

    def __init__(self, groups):
        self.groups, self.dropped, self.committed = groups, [], []

    def take(self, step, wait_s):
        return [encode_group(one) for one in self.groups] if step == 0 else []

    def drop(self, step, group_ids, reason):
        self.dropped.append((step, list(group_ids), reason))

    def commit(self, version):
        self.committed.append(version)

    def publish(self, version, engine):
        return PublishReport(version)

    def gather(self, version, engine):
        return lambda: self.publish(version, engine)

    def stats(self):
        return {}


def train(model, folder, script, policy):
    config = parse_config(
        {
            "model": {"path": model},
            "env": {"name": "gridworld"},
            "algo": {"preset": "dr_grpo"},
            "train": {"num_steps": 2, "on_poison": policy, "max_logp_error": 0},
        }
    )
    objective = build_objective(config.algo)
    seen = []
    trainer = Trainer(
        config, make_engine(model), objective, AuxiliaryModels(objective), script, script,
        callbacks=[PoisonFolder(folder, config, model), Recording(lambda _, metrics: seen.append(metrics))],
    )  # fmt: skip
    return trainer.run(), seen


def test_a_poisoned_group_is_dropped_and_kept_in_a_file(tiny_model, tmp_path):
    script = Script([*batch_of_groups()[:1], poisoned()])
    version, seen = train(tiny_model, tmp_path, script, "continue")
    assert (version, script.committed, seen[0]["batch/poisoned"]) == (1, [1], 1)
    assert script.dropped == [(0, ["g-t1"], "poison")]
    assert (tmp_path / "step-000000.safetensors").exists()


def test_a_run_stops_at_poison_where_the_recipe_says_so(tiny_model, tmp_path):
    script = Script([*batch_of_groups()[:1], poisoned()])
    with pytest.raises(StopError, match=r"step 0: group g-t1: .*; train\.on_poison is 'stop'"):
        train(tiny_model, tmp_path, script, "stop")
    assert script.committed == []
    assert (tmp_path / "step-000000.safetensors").exists()


def test_a_gradient_that_overflows_is_noticed_though_the_loss_is_finite(tiny_model):
    engine = make_engine(tiny_model, 1)
    one = batch_of_groups()[0]
    ids = torch.tensor(np.stack([t.token_ids[:8] for t in one.trajectories]), dtype=torch.long)
    mask = torch.tensor(np.stack([t.loss_mask[:8] for t in one.trajectories]))
    engine.backward(engine.logp(ids, mask, 1.0).sum() * 1e-30, last=True)
    assert engine.finite()
    engine.discard()
    value = engine.logp(ids, mask, 1.0).sum()
    # The value of sqrt at 0 is 0, its slope is infinite.
    engine.backward(torch.sqrt((value - value.detach()).abs()), last=True)
    assert not engine.finite()
    engine.discard()
    assert engine.finite()
