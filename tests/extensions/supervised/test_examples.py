"""Tokens of conversations, their masks, and the rows of each step."""

import random

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.extensions.supervised.examples import Schedule, as_text, encode_conversation, encode_rows, pack

TALK = [
    {"role": "user", "content": "goal north"},
    {"role": "assistant", "content": "north"},
    {"role": "user", "content": "goal east"},
    {"role": "assistant", "content": "east"},
]


def learned_text(renderer, row):
    return renderer.tokenizer.decode(row.ids[row.mask].tolist(), skip_special_tokens=False)


def test_the_answers_are_learned_with_their_stop_tokens_and_nothing_else(renderer):
    row = encode_conversation(renderer, Demonstration(TALK, [], 0.0))
    stop = renderer.tokenizer.eos_token
    assert learned_text(renderer, row) == f"north{stop}east{stop}"
    whole = renderer.tokenizer.apply_chat_template(TALK, tokenize=False)
    assert whole.startswith(renderer.tokenizer.decode(row.ids.tolist(), skip_special_tokens=False))


def test_an_answer_of_weight_0_is_read_and_not_learned(renderer):
    stop = renderer.tokenizer.eos_token
    first = [TALK[0], TALK[1] | {"weight": 0}, *TALK[2:]]
    row = encode_conversation(renderer, Demonstration(first, [], 0.0))
    assert learned_text(renderer, row) == f"east{stop}"
    assert row.ids.tolist() == encode_conversation(renderer, Demonstration(TALK, [], 0.0)).ids.tolist()
    last = [*TALK[:3], TALK[3] | {"weight": 0}]
    assert (
        learned_text(renderer, encode_conversation(renderer, Demonstration(last, [], 0.0))) == f"north{stop}"
    )


def test_a_row_is_shown_with_what_is_learned_and_without_what_moves_a_terminal(renderer):
    talk = [{"role": "user", "content": "goal \x1b[31mnorth"}, TALK[1]]
    row = encode_conversation(renderer, Demonstration(talk, [], 0.0))
    shown = as_text(renderer, row)
    assert shown.endswith(f"assistant\n«north{renderer.tokenizer.eos_token}»")
    assert "goal" in shown
    assert "\x1b" not in shown
    assert len(as_text(renderer, row, 20)) == 25


def test_long_rows_are_left_out_and_counted(renderer):
    rows = [("a", Demonstration(TALK[:2], [], 0.0)), ("b", Demonstration(TALK, [], 0.0))]
    short = len(encode_conversation(renderer, rows[0][1]).ids)
    found = encode_rows(renderer, rows, short)
    assert (found.lengths, found.num_long) == ([short], 1)
    with pytest.raises(
        InputError, match=r"all 2 have more than 3 tokens \(the longest \d+\); see sft.max_length"
    ):
        encode_rows(renderer, rows, 3)
    assert len(encode_rows(renderer, rows, 100, limit=1).rows) == 1


def test_packing_fills_bins_best_fit_with_the_longest_first():
    # 6 | 5 | 4 joins 5 (room 5 beats none of 4) | 3 joins 6 (room 4), 2 opens: rooms are 1 and 1.
    assert pack([2, 6, 5, 3, 4], 10) == [[1, 4], [2, 3, 0]]
    assert pack([10, 10], 10) == [[0], [1]]
    assert pack([], 10) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_packing_loses_no_row_and_overfills_no_bin(seed):
    draw = random.Random(seed)
    lengths = [draw.randint(1, 64) for _ in range(300)]
    bins = pack(lengths, 64)
    assert sorted(row for one in bins for row in one) == list(range(300))
    assert all(sum(lengths[row] for row in one) <= 64 for one in bins)
    assert len(bins) <= 1.1 * sum(lengths) / 64 + 1


def test_each_epoch_has_every_row_once_in_an_order_of_its_own():
    schedule = Schedule([[row] for row in range(10)], 4, epochs=2)
    steps = [schedule.rows(step) for step in range(schedule.num_steps)]
    assert [len(rows) for rows in steps] == [4, 4, 4, 4, 4]
    drawn = [row for rows in steps for row in rows]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert drawn != [row for step in range(5) for row in Schedule(schedule._bins, 4, 2, seed=1).rows(step)]


def test_the_last_step_of_whole_epochs_may_be_small_and_a_number_of_steps_goes_on_over_epochs():
    bins = [[0, 1], [2], [3]]
    schedule = Schedule(bins, 2, shuffle=False)
    assert [schedule.rows(step) for step in range(schedule.num_steps)] == [[0, 1, 2], [3]]
    longer = Schedule(bins, 2, steps=3, shuffle=False)
    assert [longer.rows(step) for step in range(longer.num_steps)] == [[0, 1, 2], [3, 0, 1], [2, 3]]
    assert Schedule(bins, 2, epochs=0.5, shuffle=False).num_steps == 1


def test_the_rows_of_a_step_do_not_depend_on_the_steps_asked_before():
    bins = [[row] for row in range(7)]
    in_order = Schedule(bins, 3, epochs=5)
    every = [in_order.rows(step) for step in range(in_order.num_steps)]
    assert [Schedule(bins, 3, epochs=5).rows(step) for step in range(len(every))] == every
