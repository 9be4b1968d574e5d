"""Parts of a training step: those of asyncrl are made by their table, and one of another package takes part alike."""

import pytest
import torch

from asyncrl.extensions.table import merged
from asyncrl.train.step.part_table import PARTS
from asyncrl.train.step.step_part import StepPart
from tests.train.one_step import Learner, step_once

ASKS = {
    "snapshots": {"preset": "grpo", "proximal": {"name": "snapshot"}},
    "critic": {"preset": "ppo"},
    "teacher": {"preset": "opd"},
    "reference": {"preset": "grpo", "kl": {"coef": 0.1}},
    "average": {"preset": "ppo_ewma"},
    "answers": {"preset": "igpo"},
    "score_norms": {"preset": "grpo", "advantage": {"name": "vcpo", "score": "gradient"}},
}
"""A recipe that asks for each part."""


def test_every_part_is_asked_for_here():
    assert list(ASKS) == list(dict.fromkeys(row.name for row in merged("step_parts", PARTS)))


@pytest.mark.parametrize("name", ASKS)
def test_a_part_is_there_where_the_objective_reads_it_and_takes_its_state_back(tiny_model, name):
    first, second = (Learner(tiny_model, ASKS[name]) for _ in range(2))
    assert list(first.auxiliary.parts) == [name]
    assert first.auxiliary.parts[name].name == name
    state = first.auxiliary.state_dict()
    second.auxiliary.load_state_dict(state)
    again = second.auxiliary.state_dict()
    assert again.keys() == state.keys() <= {name}
    for one, other in zip(leaves(state), leaves(again), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def leaves(state):
    """Yield the tensors and plain values of a nested state, in order."""
    if isinstance(state, dict):
        for name in sorted(state, key=str):
            yield from leaves(state[name])
    elif isinstance(state, list | tuple):
        for one in state:
            yield from leaves(one)
    else:
        yield state


class Likelihood(StepPart):
    """Adds the likelihood of what was sampled to the policy's loss, and rests in the first steps."""

    name = "likelihood"
    on_policy = True

    def __init__(self, coef, first_version=0):
        self.coef, self.first_version, self.seen = coef, first_version, []

    def score(self, engine, batch, settings, found):
        self.seen.append(batch.step)

    def learns_alone(self, version):
        return version < self.first_version

    def loss(self, step, micro, outputs, inputs, totals):
        found = -self.coef * (outputs["logp"] * inputs.mask).sum()
        return found, {}

    def after_step(self, engine, version, metrics):
        return {"likelihood/versions": float(version)}


def gradient(tiny_model, part=None):
    """Return the gradient of a step, and its report."""
    learner = Learner(tiny_model, {"preset": "grpo"})
    if part is not None:
        learner.auxiliary.parts[part.name] = part
    report = learner.step()
    return learner.engine.gradients[0], report


def test_a_loss_of_a_part_on_the_policys_trunk_is_added_to_that_of_the_objective(tiny_model):
    plain, _ = gradient(tiny_model)
    one, report = gradient(tiny_model, Likelihood(0.01))
    two, _ = gradient(tiny_model, Likelihood(0.02))
    assert (one - plain).norm() > 1e-4
    torch.testing.assert_close(two - plain, 2 * (one - plain), atol=1e-5, rtol=1e-3)
    assert report.metrics["likelihood/versions"] == 1.0


def test_while_a_part_learns_alone_the_gradient_is_its_own(tiny_model):
    plain, _ = gradient(tiny_model)
    together, _ = gradient(tiny_model, Likelihood(0.01))
    alone, _ = gradient(tiny_model, Likelihood(0.01, first_version=1))
    torch.testing.assert_close(alone, together - plain, atol=1e-5, rtol=1e-3)


def test_a_step_without_parts_needs_none(tiny_model):
    learner = Learner(tiny_model, {"preset": "grpo"})
    assert learner.auxiliary.parts == {}
    expected = step_once(Learner(tiny_model, {"preset": "grpo"}).engine, preset="grpo").metrics
    assert learner.step().metrics["loss/total"] == expected["loss/total"]
