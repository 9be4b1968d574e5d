"""What is remembered and drawn for replay."""

from asyncrl.extensions.replay.rule import Played, drawn, remembered

WIN, LOSE = (1.0, 0.0), (0.0, 0.0)


def played(*oldest, rewards=WIN):
    return [Played(f"g{version}", version, rewards) for version in oldest]


def test_groups_with_signal_are_remembered_while_a_later_step_may_draw_them():
    groups = [*played(3, 4, 5), *played(5, rewards=LOSE), *played(6)]
    # The next step is 8: at an age of at most 4 version 4 is the oldest.
    assert remembered(groups, 7, 2, 4) == played(4, 5, 6)
    assert remembered(groups, 7, 2, 1) == []


def test_the_newest_are_remembered_where_there_are_more_than_eight_times_those_drawn():
    groups = played(*range(20))
    assert remembered(groups, 20, 1, 100) == groups[12:]
    assert remembered(groups, 20, 2, 100) == groups[4:]
    assert remembered(groups, 20, 0, 100) == []


def test_none_is_drawn_twice_or_too_old_and_a_step_always_draws_the_same():
    groups = played(*range(10))
    found = drawn(groups, 9, 4, 5, seed=0)
    assert len({one.id for one in found}) == 4
    assert all(one.oldest >= 4 for one in found)
    assert drawn(groups, 9, 4, 5, seed=0) == found
    assert {one.oldest for seed in range(40) for one in drawn(groups, 9, 1, 5, seed)} == {4, 5, 6, 7, 8, 9}
    assert {one.oldest for one in drawn(groups, 12, 4, 5, seed=0)} == {7, 8, 9}, "as many as there are"
    assert drawn([], 9, 4, 5, seed=0) == []
