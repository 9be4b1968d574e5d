"""The trainer asks the policy how likely the right answer is before each turn."""

import dataclasses
import math

import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.factories import batch_of_groups
from tests.train.one_step import Learner

ANSWER = [7, 8]


class Settings:
    temperature = 1.0
    micro_batch_tokens = 60


def test_the_answer_is_scored_after_what_the_agent_has_read(tiny_model):
    learner = Learner(tiny_model, {"preset": "igpo"})
    batch = build_step_batch(batch_of_groups(), 0, 0)
    found = learner.auxiliary.step_tensors(learner.engine, batch, Settings(), 1).rows["answer_probability"]
    assert found.shape == (12, 3)
    for row, t in enumerate(batch.trajectories):
        for number, turn in enumerate(t.turns):
            ids = torch.tensor([[*t.token_ids[: turn.start].tolist(), *ANSWER]])
            with torch.no_grad():
                logits = learner.engine.engine.module.model(input_ids=ids).logits[0, -3:-1].double()
            logp = logits.log_softmax(-1)[[0, 1], ANSWER]
            assert found[row, number].item() == pytest.approx(math.exp(float(logp.mean())), rel=1e-4)
        assert found[row, len(t.turns) :].isnan().all()


def test_turns_that_made_the_answer_likelier_than_others_did_gain_from_it(tiny_model):
    """Rewards are all equal, so the whole signal is the policy's own."""
    groups = [
        dataclasses.replace(g, trajectories=tuple(dataclasses.replace(t, reward=0.0) for t in g.trajectories))
        for g in batch_of_groups()
    ]
    learner = Learner(tiny_model, {"preset": "igpo"})
    batch = build_step_batch(groups, 0, 0)
    found = learner.auxiliary.step_tensors(learner.engine, batch, Settings(), 1).rows["answer_probability"]
    report = learner.step(batch, micro_batch_tokens=60)
    advantages = report.token_values["advantages"]
    for group in (1, 2):
        rows = (batch.group == group).nonzero().flatten()
        turns = len(batch.trajectories[int(rows[0])].turns)
        rewards = [[*(found[row, 1:turns] - found[row, : turns - 1]).tolist(), 0.0] for row in rows]
        flat = torch.tensor(rewards)
        z = (flat - flat.mean()) / (flat.std() + 1e-6)
        for row, expected in zip(rows.tolist(), z.flip(-1).cumsum(-1).flip(-1), strict=True):
            # Three tokens a turn.
            torch.testing.assert_close(advantages.row(row)[::3], expected, rtol=1e-3, atol=1e-4)
    # Episodes of a single turn have no gain, and rewards that do not differ.
    assert (advantages.flat((batch.group == 0).nonzero().flatten().tolist()) == 0).all()
    assert report.metrics["grad_norm"] > 0


def test_a_batch_without_answers_says_what_is_missing(tiny_model):
    groups = [
        dataclasses.replace(g, trajectories=tuple(dataclasses.replace(t, info={}) for t in g.trajectories))
        for g in batch_of_groups()
    ]
    with pytest.raises(ConfigError, match="the data of tasks must have it as 'answer'"):
        Learner(tiny_model, {"preset": "igpo"}).step(build_step_batch(groups, 0, 0))
