"""Which prompts an engine that prefills computes, and when: the two queues and the waiting window of LAPS."""

import pytest

from asyncrl.services.engine.prefill_queues import (
    LONG_TOKENS,
    LONG_WAIT_S,
    LONGEST_WINDOW_S,
    MAX_DEPTH,
    SHORTEST_WINDOW_S,
    Depth,
    Kind,
    Step,
    adapt,
    kind_of,
    next_step,
)

WANTED = Depth(window_s=0.008, depth=3)


@pytest.mark.parametrize(
    ("tokens", "cached", "kind"),
    [
        (63, 0, Kind.NONE),
        (64, 0, Kind.SHORT),
        (255, 0, Kind.SHORT),
        (256, 0, Kind.LONG),
        # A later turn: only what is new counts.
        (4000, 3990, Kind.NONE),
        (4000, 3900, Kind.SHORT),
        (4000, 1000, Kind.LONG),
    ],
)
def test_the_tokens_that_no_cache_holds_say_where_a_prompt_is_computed(tokens, cached, kind):
    assert LONG_TOKENS == 256
    assert kind_of(tokens, cached, least=64) is kind


def test_what_is_wholly_cached_goes_nowhere_even_from_the_first_token_on():
    assert kind_of(10, 10, least=1) is Kind.NONE


@pytest.mark.parametrize(
    ("short", "long", "now", "step"),
    [
        ([], [], 1.0, Step(Kind.NONE)),
        # Two of three, for 3 of 8 ms.
        ([1.0, 1.002], [], 1.003, Step(Kind.NONE, wait_s=0.005)),
        # The window ends; the batch is deep enough.
        ([1.0, 1.002], [], 1.0085, Step(Kind.SHORT, 2)),
        ([1.0, 1.0, 1.0, 1.0], [], 1.0, Step(Kind.SHORT, 4)),
        # A long one runs alone, in the window of the short ones, and after them when they are due.
        ([1.0], [1.0, 1.0], 1.001, Step(Kind.LONG, 1)),
        ([1.0] * 3, [0.9], 1.001, Step(Kind.SHORT, 3)),
        # Unless it has been overtaken for long enough.
        ([1.0] * 3, [0.4], 1.001, Step(Kind.LONG, 1)),
        ([1.0] * 70, [], 1.0, Step(Kind.SHORT, 64)),
    ],
)
def test_batches_are_of_one_kind_and_short_prompts_wait_for_others(short, long, now, step):
    assert LONG_WAIT_S == 0.5
    found = next_step(short, long, now, WANTED)
    assert (found.kind, found.count) == (step.kind, step.count)
    assert found.wait_s == pytest.approx(step.wait_s)


def test_window_and_depth_follow_what_batches_found():
    # Deep enough: one more is waited for, twice as long.
    assert adapt(Depth(0.002, 3), 3) == Depth(0.004, 4)
    assert adapt(Depth(0.002, 3), 9) == Depth(0.004, 10)
    # In vain: (5 + 2) // 2 = 3, half the window.
    assert adapt(Depth(0.004, 5), 2) == Depth(0.002, 3)
    # Within their limits; alone, the first prompt goes at once.
    assert adapt(Depth(SHORTEST_WINDOW_S, 2), 1) == Depth(SHORTEST_WINDOW_S, 1)
    assert adapt(Depth(LONGEST_WINDOW_S, MAX_DEPTH), MAX_DEPTH) == Depth(LONGEST_WINDOW_S, MAX_DEPTH)
    assert next_step([1.0], [], 1.0, Depth(0.008, 1)) == Step(Kind.SHORT, 1)
