"""A group whose commitments are not to the policy's hidden states is rejected, whatever its log-probabilities say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import InputError
from asyncrl.extensions.commitments.commitment import commit
from asyncrl.extensions.commitments.findings import ALLOWED, Finding, examine, unfit, unfit_reason
from asyncrl.extensions.commitments.trainer import CommitmentCheck
from asyncrl.train.features.logprob_check import Tolerance, compare
from asyncrl.train.features.sampled_check import SampledCheck
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.weights.files import write_weights
from tests.train.one_step import make_engine, near_policy, step_once
from tests.train.test_logprob_check import SETTINGS, World, four

ALLOWED_HERE = ALLOWED["float32"]


@torch.no_grad()
def committed(engine, played, token_ids=lambda t: t.token_ids):
    """A group with commitments of two tokens each, as the engine with these weights makes them."""
    trajectories = []
    for t in played.trajectories:
        read = torch.tensor(token_ids(t))[None].long()
        hidden = engine.engine.module.model.base_model(read).last_hidden_state[0].float().numpy()
        states = hidden[np.flatnonzero(t.loss_mask) - 1]
        chunks = tuple(commit(states[start : start + 2]) for start in range(0, len(states), 2))
        trajectories.append(replace(t, extras={"commitments": chunks}))
    return replace(played, trajectories=tuple(trajectories))


def findings(engine, groups, folder=None):
    batch, states = build_step_batch(groups, 3, 1), {}
    compare(engine, batch, Tolerance(), SETTINGS, folder, outputs={"states": states})
    return [Finding(*one) for one in examine(batch, states)]


@pytest.fixture(scope="module")
def moved(tiny_model, tmp_path_factory):
    """An engine a step further than what `folder` holds as version 2, and groups of that version and the next."""
    engine, folder = make_engine(tiny_model), tmp_path_factory.mktemp("weights")
    write_weights(folder, 2, engine.weights())
    old = [committed(engine, g) for g in near_policy(engine, four(version=2), noise=0.0)]
    for _ in range(3):
        step_once(engine)
    new = [committed(engine, g) for g in near_policy(engine, four(version=3), noise=0.0)]
    return engine, folder, old, new


def test_commitments_of_the_policy_fit_under_the_version_that_sampled_them(moved):
    engine, folder, old, new = moved
    for groups in (old, new):
        found = findings(engine, groups, folder)
        assert [(one.group, one.num_checked, one.num_missing) for one in found] == [
            (f"g-t{i}", 12, 0) for i in range(4)
        ]
        assert max(one.exponents for one in found) < 0.1
        assert unfit(found, ALLOWED_HERE) == []


def test_stale_weights_another_prompt_and_missing_commitments_are_named(moved):
    engine, folder, old, new = moved
    stale = [
        replace(t, versions=np.where(t.loss_mask, 3, t.versions).astype(np.int32))
        for t in old[0].trajectories
    ]
    prompted = committed(engine, new[1], lambda t: np.where(np.arange(t.num_tokens) == 1, 7, t.token_ids))
    missing = [replace(t, extras={}) for t in new[2].trajectories[:1]]
    groups = [
        replace(new[0], trajectories=tuple(stale)),
        prompted,
        replace(new[2], trajectories=(*missing, *new[2].trajectories[1:])),
        new[3],
    ]
    found = findings(engine, groups, folder)
    assert [one.group for one in unfit(found, ALLOWED_HERE)] == ["g-t0", "g-t1", "g-t2"]
    assert [one.num_missing for one in found] == [0, 0, 1, 0]
    assert "commitments of 3 groups do not fit" in unfit_reason(unfit(found, ALLOWED_HERE), 3, ALLOWED_HERE)
    assert "without commitments, group g-t2" in unfit_reason([found[2]], 3, ALLOWED_HERE)


def test_a_commitment_with_a_token_of_weights_that_are_gone_is_not_compared(moved):
    engine, _folder, old, _new = moved
    assert findings(engine, old) == []


def test_commitments_travel_with_their_group_and_must_be_for_all_its_tokens(moved):
    played = moved[3][0]
    assert decode_group(encode_group(played)).trajectories[0].extras == played.trajectories[0].extras
    short = replace(
        played.trajectories[0], extras={"commitments": played.trajectories[0].extras["commitments"][1:]}
    )
    body = encode_group(replace(played, trajectories=(short, *played.trajectories[1:])))
    with pytest.raises(InputError, match=r"commitments must be for the 6 tokens sampled, got 4"):
        decode_group(body)


class Forged(World):
    """The liar's log-probabilities are the policy's, its commitments those of other weights."""

    def __init__(self, engine, other):
        super().__init__(engine)
        self.other = other
        self.ledger_put, self.ledger.put = self.ledger.put, self.put

    def put(self, played):
        worker = self.ledger._store.row("SELECT worker FROM tasks WHERE lease = ?", played.id)[0]
        honest = near_policy(self.engine, [played], noise=0.0)[0]
        source = self.other if worker == "liar" else self.engine
        self.ledger_put(committed(source, honest))


def test_a_liar_with_the_right_log_probabilities_is_quarantined_for_its_commitments(tiny_model):
    engine, other = make_engine(tiny_model), make_engine(tiny_model)
    step_once(other)
    config = parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "train": {"num_steps": 3, "commitments": True},
            "buffer": {"max_staleness": 0},
        }
    )
    objective, world = build_objective(config.algo), Forged(engine, other)
    commitments = CommitmentCheck()
    check = SampledCheck(config, None, [commitments])
    trainer = Trainer(config, engine, objective, AuxiliaryModels(objective), world, world, callbacks=[check])
    assert trainer.run() == 3
    stats = world.ledger.stats()
    assert (stats["quarantined"], stats["trained"], stats["version"]) == (["liar"], 6, 3)
    assert commitments.found[0].num_checked > 0
    assert check.metrics(3)["commitment_check/checked"] > 0
