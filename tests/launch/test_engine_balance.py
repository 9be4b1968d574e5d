"""Which engine changes over, from moments made by hand."""

import pytest

from asyncrl.launch.autoscale import Change
from asyncrl.launch.engine_balance import EngineLoad, Moment, decide, trim
from asyncrl.launch.engine_moves import engine_load

COOLDOWN_S = 60.0
MAIN, KEEPERS = "", "keepers"
IDLE = EngineLoad(2, 2, 0, 10)
"""A load of 0.1; of one engine it would be 0.2."""
QUEUED = EngineLoad(1, 10, 5, 10)
"""A load of 1.5; of two engines it would be 0.75."""


def seen(main=IDLE, keepers=QUEUED, waits=True, start_s=0.0, steps=4, **others):
    """A minute, a moment every ten seconds; lists have one value for each."""

    def at(value, i):
        return value[i] if isinstance(value, list) else value

    return [
        Moment(
            start_s + 10.0 * i,
            steps * i // 6,
            at(waits, i),
            {
                name: at(load, i)
                for name, load in {MAIN: main, KEEPERS: keepers, **others}.items()
                if at(load, i) is not None
            },
        )
        for i in range(7)
    ]


def move(window, changes=None, held=()):
    """Return the donor and the receiver of what is decided."""
    found = decide(window, changes or {}, held, COOLDOWN_S)
    return None if found is None else (found.donor, found.receiver)


def test_an_engine_changes_over_from_idle_ones_to_those_for_which_requests_wait():
    found = decide(seen(), {}, (), COOLDOWN_S)
    assert (found.donor, found.receiver) == (MAIN, KEEPERS)
    assert found.reason == "load of the engines: keepers 150% (requests wait), main 10%"


def test_engines_whose_places_or_caches_are_full_get_one_though_nothing_waits():
    assert move(seen(keepers=EngineLoad(1, 9, 0, 10))) == (MAIN, KEEPERS)
    assert move(seen(keepers=EngineLoad(1, 8, 0, 10))) is None
    assert move(seen(keepers=EngineLoad(1, 4, 0, 10, 0.95))) == (MAIN, KEEPERS)
    assert move(seen(keepers=EngineLoad(1, 4, 0, 10, 0.5))) is None


def test_waiting_requests_count_relative_to_those_that_run_whatever_the_places():
    # A cache that holds four contexts leaves most of 256 places empty.
    assert move(seen(keepers=EngineLoad(1, 4, 2, 256))) == (MAIN, KEEPERS)
    assert move(seen(main=EngineLoad(2, 10, 5, 256), keepers=EngineLoad(1, 4, 2, 256))) is None


def test_a_queue_of_one_moment_is_no_load():
    """Eight requests that have just come, at one moment of seven: 8 of 8 + 6 * 30."""
    burst = [EngineLoad(1, 0, 8, 256), *[EngineLoad(1, 30, 0, 256)] * 6]
    assert move(seen(main=EngineLoad(2, 1, 0, 256), keepers=burst)) is None


@pytest.mark.parametrize(
    ("main", "why"),
    [
        (EngineLoad(1, 1, 0, 10), "it is the last one"),
        (EngineLoad(2, 8, 0, 10), "0.4 of two is 0.8 of one, and there is no room for that"),
        (EngineLoad(2, 2, 0, 10, 0.4), "nor in the cache of one"),
        (EngineLoad(2, 2, 1, 10), "half as many requests wait there as run"),
    ],
)
def test_a_donor_keeps_what_it_needs(main, why):
    assert move(seen(main=main)) is None, why


def test_the_receiver_stays_ahead_of_the_donor():
    many = EngineLoad(8, 72, 0, 10)
    # 0.9 and 0.45: after the move 0.8 and 0.51.
    assert move(seen(main=EngineLoad(8, 36, 0, 10), keepers=many)) == (MAIN, KEEPERS)
    # 0.9 and 0.475 would be 0.8 and 0.54, but are not twice as much.
    assert move(seen(main=EngineLoad(8, 38, 0, 10), keepers=many)) is None
    # 1.0 and 0.3 would be 0.5 and 0.6.
    assert move(seen(main=EngineLoad(2, 6, 0, 10), keepers=EngineLoad(1, 10, 0, 10))) is None


def test_the_fullest_policy_gets_an_engine_of_the_emptiest():
    others = {"a": EngineLoad(2, 1, 0, 10), "b": EngineLoad(1, 10, 2, 10)}
    assert move(seen(**others)) == ("a", KEEPERS)
    assert move(seen(**others), held={KEEPERS}) == ("a", "b")
    assert move(seen(**others), changes={"a": Change(50.0, 1)}) == (MAIN, KEEPERS)


def test_no_engine_is_moved_where_the_trainer_does_not_wait_for_groups():
    assert move(seen(waits=False)) is None
    assert move(seen(waits=[True, True, *[False] * 5])) is None
    assert move(seen(waits=[*[True] * 3, *[False] * 4])) == (MAIN, KEEPERS)


def test_loads_are_those_of_the_moments_at_which_the_trainer_waits():
    """Engines that are full while they sample, and idle while the trainer works."""
    waits = [True, False] * 3 + [True]
    full = [EngineLoad(2, 20, 0, 10) if one else EngineLoad(2, 0, 0, 10) for one in waits]
    keepers = [QUEUED if one else EngineLoad(1, 0, 0, 10) for one in waits]
    assert move(seen(main=full, keepers=keepers, waits=waits)) is None
    assert move(seen(keepers=keepers, waits=waits)) == (MAIN, KEEPERS)


def test_policies_with_an_engine_that_does_not_answer_neither_give_nor_get():
    assert move(seen(main=[*[IDLE] * 6, None])) is None
    assert move(seen(keepers=[*[QUEUED] * 6, None])) is None
    assert move(seen(keepers=[*[None] * 4, *[QUEUED] * 3])) is None
    assert move(seen(keepers=[*[None] * 3, *[QUEUED] * 4])) == (MAIN, KEEPERS)


def test_nothing_changes_over_before_a_cool_down_with_two_steps_or_four_cool_downs_have_been_seen():
    assert move([]) is None
    assert move(seen()[:6]) is None
    assert move(seen(steps=1)) is None
    still = [one for start_s in (0.0, 70.0, 140.0, 180.0) for one in seen(start_s=start_s, steps=0)]
    assert move(still) == (MAIN, KEEPERS)
    assert move(still[:-1]) is None


def test_the_way_back_takes_three_cool_downs():
    def after(s, **changes):
        return move(
            seen(start_s=s - 60.0), {name or MAIN: Change(0.0, step) for name, step in changes.items()}
        )

    assert after(179.0, keepers=-1) is None
    assert after(180.0, keepers=-1) == (MAIN, KEEPERS)
    assert after(60.0, keepers=1) == (MAIN, KEEPERS)
    assert move(seen(), {MAIN: Change(-100.0, 1)}) is None
    assert move(seen(), {MAIN: Change(-100.0, -1)}) == (MAIN, KEEPERS)


def test_a_load_that_stays_moves_engines_once_and_one_that_comes_and_goes_does_not_have_them_come_and_go():
    """An hour. Three engines with ten places each; requests are shared out evenly, and what has no place waits."""

    def engines_over_time(requests):
        engines, changes, window, made = {MAIN: 2, KEEPERS: 1}, {}, [], []
        for i in range(360):
            loads = {}
            for name, wanted in requests(i).items():
                running = min(wanted, 10 * engines[name])
                loads[name] = EngineLoad(engines[name], running, wanted - running, 10)
            window = trim([*window, Moment(10.0 * i, i // 6, True, loads)], COOLDOWN_S)
            found = decide(window, changes, (), COOLDOWN_S)
            if found is not None:
                engines[found.donor] -= 1
                engines[found.receiver] += 1
                changes |= {found.donor: Change(10.0 * i, -1), found.receiver: Change(10.0 * i, 1)}
                made.append((i, found.donor, found.receiver))
                window = []
        return made

    def skewed(i):
        return {MAIN: 3, KEEPERS: 16}

    assert engines_over_time(skewed) == [(12, MAIN, KEEPERS)]

    def alternating(i):
        return {MAIN: 3, KEEPERS: 16} if i // 6 % 2 else {MAIN: 16, KEEPERS: 3}

    # Over two minutes both have much to do.
    assert engines_over_time(alternating) == []

    def turned(i):
        return {MAIN: 3, KEEPERS: 16} if i < 100 else {MAIN: 16, KEEPERS: 3}

    # The work has changed sides for good: back as soon as the mean over four cool-downs says so.
    made = engines_over_time(turned)
    assert [one[1:] for one in made] == [(MAIN, KEEPERS), (KEEPERS, MAIN)]
    assert 100 + 12 < made[1][0] <= 100 + 24


def test_a_step_of_more_than_four_cool_downs_is_waited_for_no_longer():
    """Moments that are not exactly ten seconds apart."""
    window = []
    for i in range(40):
        window = trim([*window, Moment(10.3 * i, 7, True, {MAIN: IDLE, KEEPERS: QUEUED})], COOLDOWN_S)
        assert (move(window) is None) == (10.3 * i < 240)
    assert window[0].time_s == pytest.approx(10.3 * 15)


def test_what_was_so_of_the_latest_cool_down_alone_moves_no_engine():
    before = seen(main=QUEUED, keepers=IDLE)
    assert move([*before, *seen(start_s=70.0)]) is None
    assert move([*before, *[one for i in range(1, 8) for one in seen(start_s=70.0 * i)]]) is None
    window = trim([*before, *[one for i in range(1, 8) for one in seen(start_s=70.0 * i)]], COOLDOWN_S)
    assert (window[0].time_s, move(window)) == (310.0, (MAIN, KEEPERS))


def test_the_load_of_engines_is_what_all_of_them_say():
    said = [
        {"running": 4, "waiting": 1, "kv_usage": 0.5, "paused": False},
        {"running": 0, "waiting": 0, "kv_usage": 0.0, "paused": False},
    ]
    assert engine_load(said, 8) == EngineLoad(2, 4, 1, 8, 0.25)
    assert engine_load([said[0], None], 8) is None
    assert engine_load([said[0], said[1] | {"paused": True}], 8) is None
    assert engine_load([], 8) is None
