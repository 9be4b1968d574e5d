"""The learning rate over a run, against numbers worked out by hand and transformers' schedulers."""

import pytest
import torch

from asyncrl.algo.control.lr_schedule import lr_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
    ],
)
def test_two_steps_of_warm_up_and_four_of_decay(schedule, expected):
    assert [lr_factor(schedule, step, 6, 2) for step in range(6)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_after_the_warm_up_they_are_those_of_transformers(schedule):
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = get_scheduler(schedule, optimizer, num_warmup_steps=3, num_training_steps=20)
    for step in range(20):
        rate = theirs.get_last_lr()[0]
        if step >= 3:
            assert lr_factor(schedule, step, 20, 3) == pytest.approx(rate)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_every_step_of_a_run_moves_even_one_that_is_all_warm_up(schedule):
    for num_steps, warmup_steps in ((1, 0), (3, 3), (3, 5), (10, 0)):
        assert all(0 < lr_factor(schedule, step, num_steps, warmup_steps) <= 1 for step in range(num_steps))


@pytest.mark.parametrize(("schedule", "expected"), [("constant", 1.0), ("linear", 0.0), ("cosine", 0.0)])
def test_nothing_is_left_of_a_falling_rate_after_the_last_step(schedule, expected):
    # The guard asks for the rate of the step to come, also where a run is all warm-up.
    for num_steps, warmup_steps in ((2, 2), (6, 2), (1, 0)):
        assert lr_factor(schedule, num_steps, num_steps, warmup_steps) == pytest.approx(expected)
