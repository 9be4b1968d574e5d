"""Averages, snapshots and refreshed references follow the trained policy as their rules say."""

import shutil

import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.extensions.old_policy.snapshots import Snapshots
from asyncrl.extensions.published.average import AveragedPolicy
from asyncrl.train.models.loading import load_frozen
from asyncrl.train.parts.frozen import DividedPolicy, FrozenPolicy
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from tests.train.factories import batch_of_groups, group
from tests.train.one_step import Learner, make_engine, snapshot, step_once


@pytest.fixture
def engine(tiny_model):
    return make_engine(tiny_model)


def parameters(model):
    return [p.clone() for p in model.model.parameters()]


def current(engine):
    return [tensor.clone() for tensor in snapshot(engine).values()]


def assert_equal(one, other, atol=0.0):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


def test_the_average_of_two_versions_has_the_bias_corrected_weights(engine, tiny_model):
    average = AveragedPolicy(load_frozen(tiny_model, "float32"), beta=0.5)
    first = current(engine)
    step_once(engine)
    second = current(engine)
    metrics = average.follow(engine, staleness=3.0, active_fraction=1.0)
    # Total weight 1 becomes 0.5 * 1 + 1 = 1.5, of which the new weights are 1.
    assert_equal(
        parameters(average.model), [a / 3 + 2 * b / 3 for a, b in zip(first, second, strict=True)], 1e-6
    )
    assert metrics == {"ewma/beta": 0.5, "ewma/reset": 0.0, "ewma/resets": 0.0}
    assert average.total_weight == pytest.approx(1.5)


def test_without_a_given_beta_it_follows_the_staleness_of_the_batch(engine, tiny_model):
    average = AveragedPolicy(load_frozen(tiny_model, "float32"))
    assert average.follow(engine, 2.0, 1.0)["ewma/beta"] == pytest.approx(0.5)
    assert average.follow(engine, 0.0, 1.0)["ewma/beta"] == 0.0


def test_too_few_active_tokens_reset_the_average_to_the_current_policy(engine, tiny_model):
    average = AveragedPolicy(load_frozen(tiny_model, "float32"), beta=0.9, reset_below=0.8)
    step_once(engine)
    metrics = average.follow(engine, 1.0, active_fraction=0.79)
    assert (metrics["ewma/reset"], metrics["ewma/resets"], metrics["ewma/beta"]) == (1.0, 1.0, 0.0)
    assert_equal(parameters(average.model), current(engine))


def test_an_average_resumes_from_its_saved_state(engine, tiny_model):
    average = AveragedPolicy(load_frozen(tiny_model, "float32"), beta=0.5)
    step_once(engine)
    average.follow(engine, 1.0, 1.0)
    again = AveragedPolicy(load_frozen(tiny_model, "float32"), beta=0.5)
    again.load_state_dict(average.state_dict())
    assert again.total_weight == average.total_weight
    assert_equal(parameters(again.model), parameters(average.model))


def test_snapshots_give_back_a_version_and_drop_those_beyond_the_limit(engine, tiny_model):
    snapshots = Snapshots(load_frozen(tiny_model, "float32"), keep=2)
    weights = []
    for version in range(4):
        snapshots.remember(engine, version)
        weights.append(current(engine))
        step_once(engine)
    assert sorted(snapshots.versions) == [1, 2, 3]
    assert_equal(parameters(snapshots.load(1)), weights[1])
    assert_equal(parameters(snapshots.load(3)), weights[3])
    with pytest.raises(ConfigError, match="needs the weights of version 0; kept: 1, 2, 3"):
        snapshots.load(0)


def test_a_snapshot_run_scores_every_token_with_the_version_that_sampled_it(tiny_model):
    learner = Learner(
        tiny_model,
        {"preset": "grpo", "proximal": {"name": "snapshot"}},
        buffer={"max_staleness": 2, "groups_per_step": 2},
    )
    engine = learner.engine
    old = load_frozen(tiny_model, "float32")
    learner.step()
    batch = build_step_batch([group("a", [0.0, 1.0], 0), group("b", [1.0, 0.0], 1)], 1, 2)
    rows = pad_rows(batch, range(4))
    found = learner.auxiliary.step_tensors(engine, batch, Settings(), 1).tensors["snapshot_logp"]
    with torch.no_grad():
        by_version = [
            old(rows.token_ids, rows.mask, 1.0)["logp"],
            engine.logp(rows.token_ids, rows.mask, 1.0),
        ]
    assert not torch.allclose(*by_version)
    wanted = torch.cat(
        [logp[part][rows.mask[part]] for logp, part in zip(by_version, ([0, 1], [2, 3]), strict=True)]
    )
    torch.testing.assert_close(found.values, wanted, atol=1e-6, rtol=0)


class Settings:
    temperature = 1.0
    micro_batch_tokens = 10**6


def test_the_split_of_the_ratio_says_how_much_is_engine_and_how_much_is_staleness(tiny_model):
    learner = Learner(
        tiny_model,
        {"preset": "grpo", "proximal": {"name": "snapshot"}},
        buffer={"max_staleness": 2, "groups_per_step": 2},
    )
    learner.step()
    batch = build_step_batch(batch_of_groups(version=0), 1, 2)
    metrics = learner.step(batch).metrics
    rows = pad_rows(batch, range(len(batch.trajectories)))
    old = load_frozen(tiny_model, "float32")
    with torch.no_grad():
        logp = old(rows.token_ids, rows.mask, 1.0)["logp"]
    # k1 between the engine's numbers and the trainer's own for the same version.
    expected = float(((rows.behavior_logp - logp) * rows.mask).sum() / rows.mask.sum())
    assert metrics["split/engine_kl"] == pytest.approx(expected, abs=1e-5)
    assert abs(metrics["split/staleness_kl"]) > 1e-4


def test_a_reference_stays_until_its_refresh_is_due(engine, tiny_model):
    reference = FrozenPolicy(load_frozen(tiny_model, "float32"), refresh_every=2)
    first = current(engine)
    step_once(engine)
    reference.after_step(engine, 1)
    assert_equal(parameters(reference.model), first)
    step_once(engine)
    reference.after_step(engine, 2)
    assert_equal(parameters(reference.model), current(engine))
    assert reference.refreshed_at == 2


def test_only_a_refreshed_reference_is_part_of_a_checkpoint(engine, tiny_model):
    reference = FrozenPolicy(load_frozen(tiny_model, "float32"), refresh_every=1)
    assert reference.state_dict() == {"refreshed_at": 0, "weights": {}}
    step_once(engine)
    reference.after_step(engine, 1)
    again = FrozenPolicy(load_frozen(tiny_model, "float32"), refresh_every=1)
    again.load_state_dict(reference.state_dict())
    assert_equal(parameters(again.model), current(engine))


def test_the_reference_kl_of_the_first_step_is_zero_and_grows_afterwards(tiny_model):
    learner = Learner(tiny_model, {"preset": "grpo", "kl": {"coef": 0.1, "estimator": "k3"}})
    first, second = learner.step().metrics, learner.step().metrics
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["reference_kl"] > 1e-4


def test_an_offloaded_reference_gives_the_same_numbers(tiny_model):
    algo = {"preset": "grpo", "kl": {"coef": 0.1}}
    reports = []
    for offload in (False, True):
        learner = Learner(tiny_model, algo)
        learner.auxiliary.parts["reference"].policy.offload = offload
        learner.step()
        reports.append(learner.step().metrics)
    assert reports[0]["reference_kl"] == pytest.approx(reports[1]["reference_kl"], rel=1e-6)
    assert reports[0]["loss/total"] == pytest.approx(reports[1]["loss/total"], rel=1e-6)


@pytest.mark.parametrize(("zero_stage", "offload"), [(1, False), (3, True)])
def test_a_refreshed_reference_is_offloaded_where_no_rank_has_room_for_the_policy(
    tiny_model, zero_stage, offload
):
    algo = {"preset": "grpo", "kl": {"coef": 0.1}}
    learner = Learner(tiny_model, algo, zero_stage, reference={"refresh_every": 2})
    assert learner.auxiliary.parts["reference"].policy.offload == offload


def test_a_fixed_reference_is_divided_as_the_policy_is_and_gives_the_same_numbers(tiny_model):
    whole, divided = (
        Learner(tiny_model, {"preset": "grpo", "kl": {"coef": 0.1}}, zero_stage) for zero_stage in (0, 3)
    )
    reference = divided.auxiliary.parts["reference"].policy
    assert isinstance(reference, DividedPolicy)
    assert all(hasattr(parameter, "ds_id") for parameter in reference.reading.module.parameters())
    for _ in range(2):
        expected, found = whole.step().metrics, divided.step().metrics
        assert found["reference_kl"] == pytest.approx(expected["reference_kl"], rel=1e-3, abs=1e-7)
        assert found["loss/total"] == pytest.approx(expected["loss/total"], rel=1e-3, abs=1e-6)


@pytest.fixture(scope="module")
def teacher_model(tiny_model, tmp_path_factory):
    """A model of the same shape with other weights."""
    policy = load_frozen(tiny_model, "float32")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    folder = tmp_path_factory.mktemp("teacher")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    policy.model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("preset", ["opd", "opd_full"])
def test_a_teacher_is_divided_as_the_policy_is_and_gives_the_same_numbers(tiny_model, teacher_model, preset):
    algo, teacher = {"preset": preset}, {"path": teacher_model}
    whole, divided = (Learner(tiny_model, algo, zero_stage, teacher=teacher) for zero_stage in (0, 3))
    reading = divided.auxiliary.parts["teacher"].policy.reading
    assert all(hasattr(parameter, "ds_id") for parameter in reading.module.parameters())
    for _ in range(2):
        # Several micro-batches: the teacher computes between the policy's passes.
        expected, found = (learner.step(micro_batch_tokens=60) for learner in (whole, divided))
        assert expected.metrics["grad_norm"] > 0.01
        for name in ("loss/total", "grad_norm"):
            assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3), name
