"""The rewards of an exploiter's turns, on numbers worked out by hand."""

import pytest

from asyncrl.extensions.league.rules.minimax import minimax_rewards


def test_a_turn_earns_what_the_other_side_has_to_fear():
    # Won by its own third move.
    assert minimax_rewards([0.0, 0.0, 1.0], [0.5, -0.25, None], 0.9) == pytest.approx((-0.45, 0.225, 1.0))


def test_where_the_other_side_ends_the_game_its_expectation_stands_for_the_end():
    # The game credits the loss to the last move of the loser, after which the winner was to move.
    assert minimax_rewards([0.0, -1.0], [0.1, 0.8], 1.0) == pytest.approx((-0.1, -0.8))


def test_without_a_state_of_the_other_side_the_game_pays():
    assert minimax_rewards([0.5, -1.0], [None, None], 0.9) == (0.5, -1.0)
    assert minimax_rewards([], [], 0.9) == ()


def test_there_must_be_a_value_for_each_turn():
    with pytest.raises(ValueError, match="zip"):
        minimax_rewards([0.0], [], 1.0)
