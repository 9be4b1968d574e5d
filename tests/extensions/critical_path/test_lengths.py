"""The longest chain of an episode's tokens, counted by hand."""

import numpy as np
import pytest

from asyncrl.extensions.critical_path.lengths import Lengths, lengths
from asyncrl.types import Status, Trajectory, Turn


def agent(*turns, given=(), **info):
    """A trajectory of turns of so many tokens, each after two that were read; those that are `given` were not
    sampled."""
    mask, places = [], []
    for number, size in enumerate(turns):
        mask += [False, False]
        places.append(Turn(len(mask), len(mask) + size, 0.0))
        mask += [number not in given] * size
    count = len(mask)
    return Trajectory(
        "t", 0, np.zeros(count, np.int32), np.array(mask), np.zeros(count, np.float32), np.zeros(count, np.int32),
        tuple(places), 0.0, Status.FINISHED, info=info,
    )  # fmt: skip


def thread(name, *turns, by="", turn=0):
    return agent(*turns, agent=name.partition("/")[0], agent_name=name, called_by=by, call_turn=turn)


def test_turns_of_one_agent_follow_one_another():
    assert lengths([agent(5, 7)]) == Lengths(12, 12)


def test_of_threads_of_one_turn_the_longest_counts():
    # 5, then the longest of 10, 30 and 20, then 7.
    episode = [agent(5, 7), thread("t/1", 10), thread("t/2", 30), thread("t/3", 20)]
    assert lengths(episode) == Lengths(72, 42)
    assert lengths(episode).acceleration == pytest.approx(72 / 42)


def test_threads_of_several_turns_follow_one_another():
    episode = [
        agent(5, 7, 1),
        thread("t/1", 10),
        thread("t/2", 30),
        thread("t/3", 20, turn=1),
        thread("t/4", 4, turn=1),
    ]
    assert lengths(episode) == Lengths(77, 5 + 30 + 7 + 20 + 1)


def test_threads_of_threads_are_part_of_their_chain():
    inner = [thread("s/1", 40, by="t/1"), thread("s/2", 3, by="t/2", turn=1)]
    episode = [agent(5, 7), thread("t/1", 1, 1), thread("t/2", 20, 2), *inner]
    assert lengths(episode) == Lengths(79, 5 + max(1 + 40 + 1, 20 + 2 + 3) + 7)


def test_turns_that_were_given_are_no_tokens_of_the_policy():
    assert lengths([agent(5, 7, given=(0,)), thread("t/1", 10)]) == Lengths(17, 17)


def test_an_agent_whose_caller_is_not_there_is_not_left_out():
    assert lengths([agent(5), thread("s/1", 3, by="gone", turn=4)]) == Lengths(8, 8)


def test_an_episode_without_tokens_is_no_faster():
    assert lengths([agent()]).acceleration == 1.0


def asked(*turns, order, **info):
    return agent(*turns, turn_order=[list(pair) for pair in order], **info)


def test_turns_that_were_asked_for_at_once_do_not_follow_one_another():
    # Two turns asked for after the first; the last one after both.
    main, helper = asked(5, 10, 7, order=[(0, 0), (1, 2), (3, 3)]), asked(30, order=[(1, 1)])
    assert lengths([main, helper]) == Lengths(52, 5 + 30 + 7)


def test_turns_that_were_asked_for_one_after_the_other_follow_whoever_asked():
    main, helper = asked(5, 7, order=[(0, 0), (2, 2)]), asked(30, order=[(1, 1)], called_by="", call_turn=0)
    assert lengths([main, helper]) == Lengths(42, 42)


def test_a_turn_that_began_before_the_others_ended_follows_none_of_them():
    slow, main = asked(30, order=[(0, 2)]), asked(5, 6, order=[(0, 0), (1, 1)])
    assert lengths([main, slow]) == Lengths(41, 30)
    late = asked(4, order=[(2, 3)])
    assert lengths([main, slow, late]) == Lengths(45, 30), (
        "asked for before the slow one was answered: 5 + 6 + 4"
    )


def test_turns_that_are_in_no_trajectory_count_nothing():
    assert lengths([asked(5, 7, order=[(0, 0), (9, 9)])]) == Lengths(12, 12)
