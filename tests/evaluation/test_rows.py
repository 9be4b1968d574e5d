"""Each episode of an evaluation is a line of JSON."""

import dataclasses

from asyncrl.evaluation.rows import episode_rows
from tests.train.factories import group


def evaluated(rewards):
    """One group a task, with these rewards, which count as successes from one half on."""
    for number, values in enumerate(rewards):
        one = group(f"t{number}", values)
        judged = (dataclasses.replace(t, success=t.reward >= 0.5) for t in one.trajectories)
        yield dataclasses.replace(one, trajectories=tuple(judged))


def test_each_episode_is_a_row_and_branches_are_none():
    rows = list(episode_rows(evaluated([[0.0, 1.0, 1.0]]), samples=2))
    assert [(row["env"], row["task"], row["sample"], row["reward"], row["success"]) for row in rows] == [
        ("gridworld", "t0", 0, 0.0, False),
        ("gridworld", "t0", 1, 1.0, True),
    ]
    assert (rows[0]["turns"], rows[0]["tokens"], rows[0]["status"], rows[0]["failure"]) == (
        2,
        6,
        "finished",
        None,
    )
    first = next(evaluated([[0.0, 1.0, 1.0]])).trajectories[0]
    assert rows[0]["read_tokens"] == first.turns[0].start + first.turns[1].start > 0
