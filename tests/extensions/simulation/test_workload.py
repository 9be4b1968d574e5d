"""Episodes that are drawn are the same whenever they are asked for."""

from statistics import median

import pytest

from asyncrl.extensions.simulation.workload import DrawnWorkload, EpisodeShape, RecordedWorkload, TurnShape
from asyncrl.types import Task

TASKS = [Task(f"{number:08d}", "simulated") for number in range(400)]
DRAWN = DrawnWorkload(
    turns=2,
    prompt_tokens=9,
    sampled_tokens=100,
    max_sampled_tokens=300,
    observed_tokens=7,
    tool_s=2.0,
    no_signal=0.25,
)


def test_lengths_and_latencies_have_their_medians_and_their_limit():
    turns = [turn for task in TASKS for episode in DRAWN.group(task, 2) for turn in episode.turns]
    assert median(turn.sampled_tokens for turn in turns) == pytest.approx(100, rel=0.1)
    assert max(turn.sampled_tokens for turn in turns) == 300
    assert median(turn.tool_s for turn in turns) == pytest.approx(2.0, rel=0.15)
    assert {turn.observed_tokens for turn in turns} == {9, 7}


def test_a_task_is_the_same_again_and_another_seed_is_another_one():
    assert DRAWN.group(TASKS[0], 4) == DRAWN.group(TASKS[0], 4)
    assert DRAWN.group(TASKS[0], 4) != DrawnWorkload(2, 9, 100, 300, seed=1).group(TASKS[0], 4)


def test_groups_without_signal_have_their_share():
    silent = [task for task in TASKS if len({e.reward for e in DRAWN.group(task, 4)}) == 1]
    assert len(silent) / len(TASKS) == pytest.approx(0.25, abs=0.07)


def test_recorded_groups_stay_together():
    groups = [[EpisodeShape((TurnShape(1, length, 0.0),), 0.0)] * 2 for length in (5, 50)]
    lengths = [
        {episode.turns[0].sampled_tokens for episode in RecordedWorkload(groups).group(task, 4)}
        for task in TASKS
    ]
    assert {frozenset(one) for one in lengths} == {frozenset({5}), frozenset({50})}


def test_groups_are_drawn_from_the_same_point_of_the_recorded_course():
    groups = [[EpisodeShape((TurnShape(1, length, 0.0),), 0.0)] * 2 for length in range(1, 41)]
    recorded = RecordedWorkload(groups, [16 * number for number in range(40)])

    def lengths(progress):
        return {recorded.group(task, 2, progress)[0].turns[0].sampled_tokens for task in TASKS}

    assert lengths(0) == set(range(1, 17))
    assert lengths(320) == set(range(13, 29))
    assert lengths(640) == lengths(9_999) == set(range(25, 41))
