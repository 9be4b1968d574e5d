"""Hints: what an expert wrote is played, seen and never trained."""

import pytest

from asyncrl.extensions.hints.strategy import Hints, hint
from asyncrl.types import FailureClass, Task
from tests.extensions.branches.test_strategy import ENV, Walker, run


def test_hinted_episodes_begin_with_the_experts_turns_and_train_only_their_own(renderer):
    task = Task("t", ENV, 0, data={"hint": ["west", {"role": "assistant", "content": "east"}, "north"]})
    hinted, free = run(renderer, Walker(renderer), 2, [Hints(1, renderer.assistant, 2)], task)
    texts = [renderer.text(hinted.token_ids[turn.start : turn.end]) for turn in hinted.turns[:2]]
    assert texts == ["west", "east"]
    assert hinted.info["hint_turns"] == 2
    assert not hinted.loss_mask[: hinted.turns[2].start].any()
    assert hinted.loss_mask[hinted.turns[2].start : hinted.turns[2].end].all()
    assert "hint_turns" not in free.info
    assert free.loss_mask[free.turns[0].start]


@pytest.mark.parametrize("data", [{}, {"hint": []}, {"hint": "west"}])
def test_a_task_without_a_hint_is_played_freely(renderer, data):
    assert hint(Task("t", ENV, 0, data=data), 2, renderer.assistant) is None
    (played,) = run(
        renderer, Walker(renderer), 1, [Hints(1, renderer.assistant)], Task("t", ENV, 0, data=data)
    )
    assert played.loss_mask[played.turns[0].start]


def test_a_hint_that_cannot_be_written_fails_its_group_and_says_why(renderer):
    walker = Walker(renderer)
    task = Task("t", ENV, 0, data={"hint": [{"role": "assistant", "content": 7}]})
    played = run(renderer, walker, 2, [Hints(1, renderer.assistant)], task)
    assert [t.failure for t in played] == [FailureClass.ENVIRONMENT] * 2
    assert played[0].error.startswith("task t: the hint cannot be written: ")
    assert walker.requests == []
