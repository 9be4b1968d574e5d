"""The policy teaches itself: shown a success of the group, it scores what it would have sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.extensions.self_teacher.part import choose_successes
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.types import NOT_SAMPLED, PlacedImage
from tests.train.factories import group
from tests.train.one_step import Learner, snapshot

LONG = 1000
SAMPLED = {"preset": "sdpo", "loss": "opd_sampled", "corrections": []}
FULL = {"preset": "sdpo", "corrections": []}


def groups(*rewards: list[float]):
    """A group for each list of rewards, of one agent."""
    found = [group(f"t{number}", list(some)) for number, some in enumerate(rewards)]
    return [replace(g, trajectories=tuple(replace(t, info={}) for t in g.trajectories)) for g in found]


def batch_of(*rewards: list[float]):
    return build_step_batch(groups(*rewards), 0, 0)


def with_last_words(t):
    """The episode with two more tokens that were not sampled."""
    return replace(
        t,
        token_ids=np.concatenate([t.token_ids, [5, 6]]).astype(np.int32),
        loss_mask=np.concatenate([t.loss_mask, [False, False]]),
        behavior_logprobs=np.concatenate([t.behavior_logprobs, [0, 0]]).astype(np.float32),
        versions=np.concatenate([t.versions, [NOT_SAMPLED] * 2]).astype(np.int32),
    )


def logits_after(learner: Learner, batch, row: int, success: int | None = None) -> torch.Tensor:
    """[S,V] of a row's sampled tokens, by the model alone; after a success up to its last sampled token."""
    t = batch.trajectories[row]
    read = np.zeros(0, np.int32)
    if success is not None:
        shown = batch.trajectories[success]
        read = shown.token_ids[: int(np.flatnonzero(shown.loss_mask)[-1]) + 1]
    ids = torch.from_numpy(np.concatenate([read, t.token_ids]).astype(np.int64))[None]
    places = torch.from_numpy(np.flatnonzero(t.loss_mask)) + len(read)
    return learner.engine.engine.module.model(input_ids=ids).logits[0, places - 1].float()


def test_each_row_is_shown_the_best_success_of_another_episode():
    batch = batch_of([1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0])
    # Alone in its group, the success of row 0 is not its own teacher's; row 4 is shown the second best.
    assert choose_successes(batch, LONG) == ({1: 0, 2: 0, 3: 4, 4: 3, 5: 4}, set())


def test_of_equal_successes_the_shortest_is_shown():
    batch = batch_of([0.0, 1.0, 1.0])
    assert [t.num_tokens for t in batch.trajectories] == [16, 17, 18]
    assert choose_successes(batch, LONG)[0] == {0: 1, 1: 2, 2: 1}


def test_a_success_that_does_not_fit_gives_way_to_a_shorter_one_or_none():
    batch = batch_of([0.0, 0.5, 1.0])
    # Rows of 16, 17 and 18 tokens; the successes end with sampled tokens.
    assert choose_successes(batch, 35) == ({0: 2, 1: 2, 2: 1}, set())
    assert choose_successes(batch, 34) == ({0: 2}, {1, 2})
    assert choose_successes(batch, 33) == ({0: 1}, {1, 2})
    assert choose_successes(batch, 32) == ({}, {0, 1, 2})


def test_the_environments_verdict_goes_before_the_reward():
    batch = batch_of([1.0, 0.0, 0.0])
    judged = [replace(t, success=index == 1) for index, t in enumerate(batch.trajectories)]
    assert choose_successes(replace(batch, trajectories=tuple(judged)), LONG)[0] == {0: 1, 2: 1}


def test_another_agents_success_is_not_shown():
    batch = batch_of([1.0, 0.0, 0.0])
    agents = [replace(t, info={"agent": f"a{index % 2}"}) for index, t in enumerate(batch.trajectories)]
    assert choose_successes(replace(batch, trajectories=tuple(agents)), LONG)[0] == {2: 0}


def test_what_the_teacher_says_is_a_forward_pass_over_the_success_and_the_row(tiny_model):
    learner = Learner(tiny_model, SAMPLED)
    some = groups([1.0, 0.0, 0.5], [0.0, 0.0])
    first, *others = some[0].trajectories
    # What the environment said last is not shown.
    some[0] = replace(some[0], trajectories=(with_last_words(first), *others))
    batch = build_step_batch(some, 0, 0)
    assert batch.trajectories[0].num_tokens == first.num_tokens + 2

    class Settings:
        temperature = 0.7
        micro_batch_tokens = 60

    found = learner.auxiliary.step_tensors(learner.engine, batch, Settings(), 1)
    assert found.of_parts["teacher"].taught == [0, 1, 2]
    for row, success in {0: 2, 1: 0, 2: 0}.items():
        with torch.no_grad():
            logits = logits_after(learner, batch, row, success) / 0.7
        t = batch.trajectories[row]
        labels = torch.from_numpy(t.token_ids[t.loss_mask].astype(np.int64))
        expected = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        torch.testing.assert_close(found.tensors["teacher_logp"].row(row), expected, rtol=1e-4, atol=1e-5)
    assert (found.tensors["teacher_logp"].flat([3, 4]) == 0).all()


def test_the_gradient_is_that_of_the_divergence_from_the_policy_that_has_read_a_success(tiny_model):
    learner = Learner(tiny_model, FULL)
    batch = batch_of([1.0, 0.0, 0.5], [0.0, 0.0], [0.0, 1.0])
    pairs = {0: 2, 1: 0, 2: 0, 5: 6}
    divergence = torch.zeros(())
    for row, success in pairs.items():
        with torch.no_grad():
            teacher = logits_after(learner, batch, row, success).log_softmax(-1)
        log_pi = logits_after(learner, batch, row).log_softmax(-1)
        divergence = divergence + (log_pi.exp() * (log_pi - teacher)).sum()
    mean = divergence / sum(batch.trajectories[row].num_sampled for row in pairs)
    parameters = list(learner.engine.engine.module.parameters())
    expected = torch.autograd.grad(mean, parameters, allow_unused=True)
    report = learner.step(batch, micro_batch_tokens=60)
    assert report.metrics["teacher/kl_full"] == pytest.approx(float(mean.detach()), rel=1e-4)
    assert report.metrics["loss/total"] == pytest.approx(float(mean.detach()), rel=1e-4)
    assert report.metrics["self_teacher/taught_fraction"] == pytest.approx(4 / 7)
    assert report.metrics["self_teacher/too_long_fraction"] == 0
    assert report.num_sequences == 4
    flat = torch.cat([grad.flatten() for grad in expected if grad is not None])
    assert flat.norm() > 1e-3
    torch.testing.assert_close(learner.engine.gradients[0], flat, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("algo", [SAMPLED, FULL], ids=["sampled", "full"])
def test_without_a_success_nothing_is_learned(tiny_model, algo):
    learner = Learner(tiny_model, algo)
    before = snapshot(learner.engine)
    report = learner.step(batch_of([0.0, 0.0], [1.0]))
    assert report.skipped == "every trajectory was filtered out"
    assert report.metrics["self_teacher/taught_fraction"] == 0
    assert all(torch.equal(before[name], after) for name, after in snapshot(learner.engine).items())


def test_what_does_not_fit_the_models_context_is_counted(tiny_model):
    learner = Learner(tiny_model, SAMPLED)
    learner.auxiliary.parts["teacher"].max_tokens = 33
    report = learner.step(batch_of([0.0, 0.5, 1.0]))
    assert report.metrics["self_teacher/taught_fraction"] == pytest.approx(1 / 3)
    assert report.metrics["self_teacher/too_long_fraction"] == pytest.approx(2 / 3)
    assert report.num_sequences == 1


def test_the_teacher_reads_as_much_as_the_model_can(tiny_model):
    learner = Learner(tiny_model, SAMPLED)
    context = learner.engine.engine.module.model.config.max_position_embeddings
    assert learner.auxiliary.parts["teacher"].max_tokens == max(context, learner.config.max_tokens)


def test_rows_with_images_are_refused(tiny_model):
    learner = Learner(tiny_model, SAMPLED)
    batch = batch_of([1.0, 0.0])
    seen = replace(batch.trajectories[1], extras={"images": (PlacedImage(0, 1, "key", b""),)})
    with pytest.raises(ConfigError, match=r"teacher\.path: 'self' is not for rows with images"):
        learner.step(replace(batch, trajectories=(batch.trajectories[0], seen)))
