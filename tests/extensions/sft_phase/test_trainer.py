"""Supervised phases between steps imitate each task's shortest success, once."""

import dataclasses

import pytest
import torch

from asyncrl.extensions.sft_phase.settings import SftPhaseConfig
from asyncrl.extensions.sft_phase.trainer import SftPhase, imitate
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from asyncrl.train.step.step_settings import StepSettings
from tests.train.factories import group, trajectory
from tests.train.one_step import make_engine, snapshot

SETTINGS = StepSettings(1.0, 10**6, 1, horizon=64.0)
MIXED = {"t0": [0.0, 1.0, 1.0], "t1": [1.0, 0.0], "t2": [0.0, 0.0]}


def batch():
    return build_step_batch([group(name, rewards) for name, rewards in MIXED.items()], 0, 0)


def phase(**values):
    return SftPhase(SftPhaseConfig(**{"every": 2, "steps": 2, "learning_rate": 1e-3, **values}))


def likelihood(engine, trajectories):
    rows = pad_rows(build_step_batch([group("t0", [1.0])], 0, 0), [0])
    found = dataclasses.replace(
        build_step_batch([group("t0", [1.0])], 0, 0), trajectories=tuple(trajectories)
    )
    rows = pad_rows(found, range(len(trajectories)))
    with torch.no_grad():
        return float(engine.logp(rows.token_ids, rows.mask, 1.0).sum())


def test_the_shortest_success_of_each_task_is_remembered_until_the_phase(tiny_model):
    engine, found = make_engine(tiny_model), phase()
    before = snapshot(engine)
    assert found.after_step(engine, batch(), SETTINGS, 1) == {}
    assert {name: t.episode_index for name, t in found.kept.items()} == {"t0": 1, "t1": 0}
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(engine).items())


def test_a_phase_trains_on_each_success_once_and_makes_it_likelier(tiny_model):
    engine, found = make_engine(tiny_model), phase()
    found.after_step(engine, batch(), SETTINGS, 1)
    kept = list(found.kept.values())
    before = likelihood(engine, kept)
    metrics = found.after_step(engine, batch(), SETTINGS, 2)
    assert (metrics["sft_phase/steps"], metrics["sft_phase/sequences"]) == (2.0, 2.0)
    assert likelihood(engine, kept) > before
    assert found.kept == {}


def test_without_a_success_there_is_no_phase(tiny_model):
    engine, found = make_engine(tiny_model), phase(every=1)
    failures = build_step_batch([group("t2", [0.0, 0.0])], 0, 0)
    before = snapshot(engine)
    assert found.after_step(engine, failures, SETTINGS, 1) == {}
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(engine).items())


def test_the_oldest_tasks_are_forgotten_first(tiny_model):
    found = phase(every=100, keep=2)
    many = build_step_batch([group(f"t{i}", [1.0]) for i in range(4)], 0, 0)
    found.after_step(make_engine(tiny_model), many, SETTINGS, 1)
    assert list(found.kept) == ["t2", "t3"]


def test_the_loss_is_the_mean_over_sampled_tokens_whatever_the_cut(tiny_model):
    chosen = [trajectory("t0", 0, turns=1), trajectory("t1", 2, turns=3)]
    losses, weights = [], []
    for budget in (10**6, 1):
        engine = make_engine(tiny_model)
        expected = -likelihood(engine, chosen) / sum(t.num_sampled for t in chosen)
        losses.append(imitate(engine, chosen, dataclasses.replace(SETTINGS, micro_batch_tokens=budget), 1e-3))
        weights.append(engine.gradients[0])
        assert losses[-1] == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-3)


def test_remembered_successes_survive_a_checkpoint(tiny_model):
    found, again = phase(every=100), phase(every=100)
    found.after_step(make_engine(tiny_model), batch(), SETTINGS, 1)
    again.load_state_dict(found.state_dict())
    assert list(again.kept) == list(found.kept)
    assert all((again.kept[k].token_ids == found.kept[k].token_ids).all() for k in found.kept)
