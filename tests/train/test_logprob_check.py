"""A worker whose log-probabilities are not the policy's is quarantined, and only its work is discarded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group
from asyncrl.errors import ConflictError
from asyncrl.train.features.logprob_check import Tolerance, _over_older_kv, compare, disagreeing, of_groups
from asyncrl.train.features.sampled_check import SampledCheck
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import NOT_SAMPLED, Task
from asyncrl.weights.files import write_weights
from asyncrl.weights.publish import PublishReport
from tests.train.factories import group, trajectory
from tests.train.one_step import make_engine, near_policy, snapshot, step_once
from tests.train.one_step_lora import adapted

SETTINGS = StepSettings(1.0, 10**6, 1, horizon=64.0)


@pytest.fixture(scope="module")
def engine(tiny_model):
    return make_engine(tiny_model)


def four(version=3):
    return [group(f"t{i}", [0.0, 1.0, 0.0, 1.0], version) for i in range(4)]


def comparisons(engine, groups, folder=None, **tolerance):
    return compare(engine, build_step_batch(groups, 3, 1), Tolerance(**tolerance), SETTINGS, folder)


def found(engine, groups, **tolerance):
    return disagreeing(comparisons(engine, groups, **tolerance), Tolerance(**tolerance))


def test_numbers_of_the_policy_itself_agree_to_rounding(engine):
    honest = near_policy(engine, four(), noise=0.0)
    seen = comparisons(engine, honest)
    assert [c.num_tokens for c in seen] == [24, 24, 24, 24]
    assert max(c.error for c in seen) < 1e-5
    assert found(engine, honest) == []


@pytest.mark.parametrize("forgery", ["another temperature", "made up", "shifted by one token"])
def test_groups_whose_numbers_are_of_another_policy_disagree_and_no_others(engine, forgery):
    honest = near_policy(engine, four(), noise=0.0)
    forged = []
    for t in honest[2].trajectories:
        logp = t.behavior_logprobs
        wrong = {
            "another temperature": 0.6 * logp,
            "made up": np.full_like(logp, -0.1),
            "shifted by one token": np.roll(logp, 1),
        }[forgery]
        forged.append(replace(t, behavior_logprobs=np.where(t.loss_mask, wrong, 0.0).astype(np.float32)))
    honest[2] = replace(honest[2], trajectories=tuple(forged))
    assert [c.group for c in found(engine, honest[::-1])] == ["g-t2"]
    assert found(engine, honest, max_logp_error=0.0) == []


def off_by(played, nats, tokens):
    """Add `nats` to the log-probability of the first `tokens` tokens of a group's first episode."""
    first = played.trajectories[0]
    logp = first.behavior_logprobs.copy()
    logp[np.flatnonzero(first.loss_mask)[:tokens]] -= nats
    return replace(played, trajectories=(replace(first, behavior_logprobs=logp), *played.trajectories[1:]))


def test_a_few_tokens_are_enough_when_they_are_far_off(engine):
    short = near_policy(engine, [group("t0", [0.0, 1.0], 3, turns=1)], noise=0.0)[0]
    assert [c.num_tokens for c in comparisons(engine, [short])] == [6]
    assert found(engine, [off_by(short, 30.0, 3)])[0].worst == pytest.approx(30.0, abs=0.01)
    assert found(engine, [off_by(short, 30.0, 1)], max_logp_error=0.0)
    assert found(engine, [off_by(short, 14.0, 3)]) == []
    assert found(engine, [off_by(short, 30.0, 3)], max_token_error=0.0) == []
    assert found(engine, [off_by(short, np.nan, 1)])


@pytest.fixture(scope="module", params=["all weights", "ZeRO-3", "adapter"])
def moved(request, tiny_model, tmp_path_factory):
    """An engine a step further than what `folder` holds as version 2, groups that version sampled, and its step."""
    if request.param == "adapter":
        learner = adapted(tiny_model)
        engine = learner.engine
        learner.step()
    else:
        engine = make_engine(tiny_model, zero_stage=3 if request.param == "ZeRO-3" else 1)
    folder = tmp_path_factory.mktemp("weights")
    write_weights(folder, 2, engine.weights())
    earlier = near_policy(engine, four(version=2), noise=0.0)
    for _ in range(3):
        step_once(engine)
    write_weights(folder, 3, engine.weights())
    return engine, folder, earlier


def test_tokens_of_an_older_version_are_compared_under_its_weights(moved):
    engine, folder, earlier = moved
    before = snapshot(engine)
    seen = comparisons(engine, earlier, folder)
    assert [(c.num_tokens, c.num_earlier) for c in seen] == [(24, 24)] * 4
    assert max(c.worst for c in seen) < 1e-4
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(engine).items())
    under_new = near_policy(engine, four(version=2), noise=0.0)
    assert min(c.error for c in comparisons(engine, under_new, folder)) > 1e-3
    forged = [made_up(earlier[0]), *earlier[1:]]
    wrong = disagreeing(comparisons(engine, forged, folder), Tolerance())
    assert [c.group for c in wrong] == ["g-t0"]


def test_a_turn_that_begins_with_tokens_nobody_sampled_is_over_no_older_kv():
    one = trajectory(turns=1, version=3)
    put = np.arange(one.num_tokens) == one.turns[0].start
    begun = replace(
        one,
        loss_mask=one.loss_mask & ~put,
        versions=np.where(put, NOT_SAMPLED, one.versions).astype(np.int32),
    )
    assert not _over_older_kv(begun).any()
    moved_on = begun.versions.copy()
    moved_on[one.turns[0].end - 1] = 4
    assert np.flatnonzero(_over_older_kv(replace(begun, versions=moved_on))).tolist() == [
        one.turns[0].end - 1
    ]


def test_each_span_is_compared_under_the_version_that_sampled_it(moved):
    engine, folder, earlier = moved
    newer = near_policy(engine, four(version=3), noise=0.0)
    mixed = []
    for old, new in zip(earlier[0].trajectories, newer[0].trajectories, strict=True):
        second = np.arange(old.num_tokens) >= old.turns[1].start
        mixed.append(
            replace(
                old,
                versions=np.where(second, new.versions, old.versions),
                behavior_logprobs=np.where(second, new.behavior_logprobs, old.behavior_logprobs),
            )
        )
    played = replace(earlier[0], trajectories=tuple(mixed))
    [seen] = comparisons(engine, [played], folder)
    assert (seen.num_tokens, seen.num_earlier) == (24, 12)
    assert seen.worst < 1e-4


def test_what_a_turn_samples_over_an_older_cache_is_not_compared(moved):
    engine, folder, earlier = moved
    turns = []
    for old in earlier[0].trajectories:
        versions, logprobs = old.versions.copy(), old.behavior_logprobs.copy()
        last = old.turns[1]
        versions[last.start + 1 : last.end] = 3
        logprobs[last.start + 1 : last.end] -= 20.0
        turns.append(replace(old, versions=versions, behavior_logprobs=logprobs))
    batch = build_step_batch([replace(earlier[0], trajectories=tuple(turns))], 3, 1)
    [seen] = compare(engine, batch, Tolerance(), SETTINGS, folder)
    assert (seen.num_tokens, round(seen.worst)) == (24, 20)
    [seen] = compare(engine, batch, Tolerance(), SETTINGS, folder, kept_kv=True)
    assert seen.num_tokens < 24
    assert seen.num_earlier == seen.num_tokens
    assert seen.worst < 1e-4


def test_tokens_whose_versions_weights_are_gone_are_not_compared(moved, tmp_path):
    engine, _folder, earlier = moved
    assert comparisons(engine, earlier) == []
    assert comparisons(engine, earlier, tmp_path) == []
    (tmp_path / "weights-00000002.safetensors").write_bytes(b"torn")
    assert comparisons(engine, earlier, tmp_path) == []


def test_a_sample_takes_from_every_group_in_turn(engine):
    seen = comparisons(engine, four(), sample_tokens=20)
    assert [c.num_tokens for c in seen] == [6, 6, 6, 6]


def test_of_a_large_batch_some_tokens_of_each_group_are_compared(engine):
    assert [Tolerance().wanted(groups) for groups in (1, 16, 20, 32, 100)] == [1024, 1024, 1280, 2048, 2048]
    seen = comparisons(engine, four(), least_tokens=10, group_tokens=7)
    assert [c.num_tokens for c in seen] == [12, 12, 12, 12]


def made_up(played):
    wrong = [
        replace(t, behavior_logprobs=np.where(t.loss_mask, -0.1, 0.0).astype(np.float32))
        for t in played.trajectories
    ]
    return replace(played, trajectories=tuple(wrong))


def test_the_tokens_of_each_engine_are_compared_apart(engine):
    honest = near_policy(engine, four(), noise=0.0)
    by_two = []
    for t in honest[1].trajectories:
        logp = t.behavior_logprobs.copy()
        second = slice(t.turns[1].start, t.turns[1].end)
        logp[second] -= 2.0 * t.loss_mask[second]
        by_two.append(replace(t, behavior_logprobs=logp, engines=("http://a:1", "http://b:1")))
    of_one = tuple(replace(t, engines=("http://a:1",)) for t in honest[0].trajectories)
    sent = [
        replace(honest[0], trajectories=of_one),
        replace(honest[1], trajectories=tuple(by_two)),
        honest[2],
    ]
    parts = comparisons(engine, sent)
    assert [(c.group, c.engine, c.num_tokens, round(c.error, 3)) for c in parts] == [
        ("g-t0", "http://a:1", 24, 0.0),
        ("g-t1", "http://a:1", 12, 0.0),
        ("g-t1", "http://b:1", 12, 2.0),
        ("g-t2", "", 24, 0.0),
    ]
    whole = of_groups(parts)
    assert [(c.group, c.engine, c.num_tokens, round(c.error, 3)) for c in whole] == [
        ("g-t0", "", 24, 0.0), ("g-t1", "", 24, 1.0), ("g-t2", "", 24, 0.0),
    ]  # fmt: skip
    assert whole[1].worst == pytest.approx(2.0, abs=1e-3)


class World:
    """A real ledger with two workers; what `liar` sends was not sampled from the policy."""

    def __init__(self, engine):
        self.engine, self.batches = engine, []
        self.ledger = Ledger(":memory:", LedgerSettings(2, 0, 4))
        self.ledger.add_tasks([Task(f"t{i}", "gridworld") for i in range(6)])
        self.ledger.close_plan()

    def take(self, step, wait_s):
        for number in range(2):
            try:
                lease = self.ledger.lease("liar" if number else "honest")
            except ConflictError:
                lease = self.ledger.lease("honest")
            if lease is not None:
                played = replace(group(lease.task.id, [0.0, 1.0, 0.0, 1.0], lease.version), id=lease.id)
                honest = near_policy(self.engine, [played], noise=0.0)[0]
                row = "SELECT worker FROM tasks WHERE lease = ?"
                worker = self.ledger._store.row(row, lease.id)[0]
                sent = made_up(played) if worker == "liar" else honest
                self.ledger.put(replace(sent, worker="honest"))
        taken = self.ledger.take(step).groups or []
        self.batches.append([decode_group(body).task.id for body in taken])
        return taken

    def reject(self, step, group_ids, reason, engines):
        return self.ledger.reject(step, group_ids, reason, engines)

    def commit(self, version):
        self.ledger.commit(version)

    def publish(self, version, engine):
        return PublishReport(version)

    def stats(self):
        return self.ledger.stats()


def trained(world):
    """Train three steps of two groups; return the world afterwards."""
    sections = {"train": {"num_steps": 3}, "buffer": {"max_staleness": 0}}
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}} | sections)
    objective = build_objective(config.algo)
    auxiliary, check = AuxiliaryModels(objective), SampledCheck(config, None)
    trainer = Trainer(config, world.engine, objective, auxiliary, world, world, callbacks=[check])
    assert trainer.run() == 3
    return world


def test_a_liar_is_quarantined_under_its_own_name_and_its_task_is_given_to_another(tiny_model):
    world = trained(World(make_engine(tiny_model)))
    assert world.batches == [["t0", "t1"], ["t0", "t1"], ["t2", "t3"], ["t4", "t5"]]
    stats = world.ledger.stats()
    assert stats["quarantined"] == ["liar"]
    assert (stats["trained"], stats["failed"], stats["version"]) == (6, 0, 3)


class FaultyEngine(World):
    """One worker uses two engines. The second one samples from another policy until its users are readmitted."""

    faulty = "http://b:1"

    def take(self, step, wait_s):
        if self.ledger.stats()["faulty_engines"]:
            assert self.ledger.readmit_users(self.faulty) == ["w"]
            self.faulty = ""
        for url in ("http://a:1", "http://b:1"):
            if (lease := self.ledger.lease("w")) is None:
                continue
            played = replace(group(lease.task.id, [0.0, 1.0, 0.0, 1.0], lease.version), id=lease.id)
            sent = made_up(played) if url == self.faulty else near_policy(self.engine, [played], noise=0.0)[0]
            named = tuple(replace(t, engines=(url,)) for t in sent.trajectories)
            self.ledger.put(replace(sent, trajectories=named, worker="w"))
        taken = self.ledger.take(step).groups or []
        self.batches.append([decode_group(body).task.id for body in taken])
        return taken


def test_the_worker_of_a_faulty_engine_is_readmitted_and_the_batch_sampled_again(tiny_model):
    world = trained(FaultyEngine(make_engine(tiny_model)))
    assert world.batches == [["t0", "t1"], ["t0", "t1"], ["t2", "t3"], ["t4", "t5"]]
    stats = world.ledger.stats()
    assert (stats["faulty_engines"], stats["quarantined"]) == ({}, [])
    assert (stats["trained"], stats["failed"], stats["version"]) == (6, 0, 3)


def test_a_run_that_allows_no_error_compares_nothing():
    assert Tolerance.of(0.5) == Tolerance(0.5, 15.0, 2048)
    off = Tolerance.of(0.0)
    assert (off.max_logp_error, off.max_token_error) == (0.0, 0.0)


@pytest.mark.slow
def test_ranks_that_share_the_weights_score_under_an_earlier_version_together(
    two_ranks, tiny_model, tmp_path
):
    two_ranks.call("tests.train.earlier_policy_ranks", tiny_model, str(tmp_path))
