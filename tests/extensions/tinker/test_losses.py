"""Each loss on numbers computed by hand, with its gradient."""

import math

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.losses import LOSSES, loss_of

BEHAVIOR = [math.log(0.5), math.log(0.4)]
POLICY = [math.log(0.75), math.log(0.2)]
"""Ratios 1.5 and 0.5."""


def computed(name, advantages=(2.0, -1.0), settings=None, **inputs):
    logp = torch.tensor(POLICY, dtype=torch.float64, requires_grad=True)
    given = {"logprobs": BEHAVIOR, "advantages": advantages, **inputs}
    tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in given.items()}
    loss = LOSSES[name].compute(logp, tensors, settings or {})
    loss.backward()
    return loss.item(), logp.grad.tolist()


def check(found, loss, gradient):
    assert found[0] == pytest.approx(loss)
    assert found[1] == pytest.approx(gradient)


def test_cross_entropy_weighs_each_target():
    check(computed("cross_entropy", weights=[1.0, 3.0]), -POLICY[0] - 3 * POLICY[1], [-1.0, -3.0])


def test_importance_sampling_weighs_by_the_ratio():
    # d/dlogp of -ratio A is -ratio A.
    check(computed("importance_sampling"), -(1.5 * 2 - 0.5), [-3.0, 0.5])


def test_ppo_clips_where_it_would_gain():
    # 1.5 is clipped to 1.2 with A > 0; 0.5 to 0.8 with A < 0, which is the lesser value: no gradient in either.
    check(computed("ppo"), -(1.2 * 2 - 0.8), [0.0, 0.0])
    check(computed("ppo", advantages=(-2.0, 1.0)), 1.5 * 2 - 0.5, [3.0, -0.5])


def test_bounds_come_from_the_request_or_from_the_row():
    settings = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    assert computed("ppo", settings=settings)[0] == pytest.approx(-(1.1 * 2 - 0.9))
    own = {"clip_low_threshold": [0.0, 0.6], "clip_high_threshold": [1.3, 2.0]}
    assert computed("ppo", settings=settings, **own)[0] == pytest.approx(-(1.3 * 2 - 0.6))


def test_cispo_weighs_by_the_clipped_ratio_and_keeps_the_gradient():
    check(
        computed("cispo"), -(1.2 * POLICY[0] * 2 - 0.8 * POLICY[1]), [-1.2 * 2, 0.8],
    )  # fmt: skip


def test_dro_penalises_the_square_of_the_log_ratio():
    logs = [math.log(1.5), math.log(0.5)]
    loss = -(POLICY[0] * 2 - POLICY[1]) + 0.5 * 0.1 * (logs[0] ** 2 + logs[1] ** 2)
    check(computed("dro", settings={"beta": 0.1}), loss, [-2 + 0.1 * logs[0], 1 + 0.1 * logs[1]])


def test_gspo_has_one_ratio_for_the_sequence_and_each_token_its_own_gradient():
    ratio = math.sqrt(1.5 * 0.5)
    found = computed("gspo", sequence_ratio_mask=[1.0, 1.0])
    check(found, -(ratio * 2 - ratio), [-2 * ratio, ratio])
    # Of the first token alone: 1.5, clipped where the advantage is positive.
    found = computed("gspo", sequence_ratio_mask=[1.0, 0.0])
    check(found, -(1.2 * 2 - 1.5), [0.0, 1.5])


def test_what_a_loss_does_not_read_is_refused():
    with pytest.raises(
        InputError, match="unknown loss 'stable_reinforce'; this server has cross_entropy, imp"
    ):
        loss_of("stable_reinforce", {})
    with pytest.raises(
        InputError, match=r"loss_fn_config\.beta: ppo does not read it; allowed: clip_low_thr"
    ):
        loss_of("ppo", {"beta": 1.0})
    with pytest.raises(InputError, match=r"loss_fn_config\.beta: must be given, a number"):
        computed("dro")
    with pytest.raises(InputError, match=r"loss_fn_config\.clip_low_threshold: must be a number, got 'x'"):
        computed("ppo", settings={"clip_low_threshold": "x"})
    with pytest.raises(InputError, match="sequence_ratio_mask: marks no token"):
        computed("gspo", sequence_ratio_mask=[0.0, 0.0])
