"""What is decided from observations made by hand."""

import pytest

from asyncrl.extensions.autoscale.decisions import Change, Decision, Load, Observation, decide, trim
from asyncrl.extensions.autoscale.scaling import engine_load, env_load, worker_load

LIMITS = {"rollout": (1, 4), "env": (1, 3), "engine": (1, 2)}
TWO = {"rollout": 2, "env": 2, "engine": 1}
COOLDOWN_S = 60.0
BUSY = Load(busy=1.0)


def seen(waits, ready=0.0, free_slots=3, tasks_left=True, start_s=0.0, steps=4, **loads):
    """A minute, an observation every ten seconds; `waits` has for each whether the trainer waited."""
    waits = waits if isinstance(waits, list) else [waits] * 7
    return [
        Observation(
            start_s + 10.0 * i, steps * i // (len(waits) - 1), w, ready, free_slots, tasks_left,
            {"rollout": BUSY, "env": Load(0.2), "engine": Load(0.5)} | loads,
        )
        for i, w in enumerate(waits)
    ]  # fmt: skip


def change(window, counts=TWO, limits=LIMITS, changes=None):
    found = decide(limits, counts, window, changes or {}, COOLDOWN_S)
    return found.role, found.step


def test_a_starved_trainer_with_idle_engines_gets_a_worker():
    assert decide(LIMITS, TWO, seen(True), {}, COOLDOWN_S) == Decision(
        "rollout",
        1,
        "the trainer waits for 100% of the time: the workers play as many groups as they may, and more are admitted",
    )


def test_workers_whose_processor_time_is_used_up_get_another_one_even_at_the_staleness_limit():
    window = seen(True, free_slots=0, rollout=Load(0.5, cpu=0.95))
    assert change(window) == ("rollout", 1)


def test_a_starved_trainer_whose_engines_have_requests_waiting_gets_an_engine():
    assert change(seen(True, engine=Load(1.0, queued=0.5))) == ("engine", 1)


def test_a_starved_trainer_whose_environments_are_saturated_gets_an_environment_service():
    assert change(seen(True, env=Load(1.0, queued=0.5))) == ("env", 1)
    assert change(seen(True, env=Load(0.1, cpu=0.95))) == ("env", 1)
    # Workers that wait for places look busy, and more of them would wait, too.
    assert change(seen(True, env=Load(1.0, queued=0.5)), limits={"rollout": (1, 4)}) == ("", 0)


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (seen(True, free_slots=0), "the staleness limit admits no further groups"),
        (seen(True, tasks_left=False), "no tasks are left to be played"),
        (seen(True, rollout=Load(0.5)), "neither workers, engines nor environments are saturated"),
    ],
)
def test_more_workers_are_not_started_where_they_would_have_nothing_to_do(window, why):
    assert decide(LIMITS, TWO, window, {}, COOLDOWN_S) == Decision(
        "", 0, f"the trainer waits for 100% of the time: {why}"
    )


def test_groups_that_wait_for_the_trainer_cost_the_process_that_the_others_can_do_without():
    idle = Load(0.3)
    # Two workers busy for 0.3 are one busy for 0.6.
    assert change(seen(False, ready=1.5, free_slots=0, rollout=idle)) == ("env", -1)
    assert change(seen(False, ready=1.5, free_slots=0, rollout=idle, env=Load(0.4))) == ("rollout", -1)
    assert change(seen(False, ready=1.5, rollout=idle), TWO | {"env": 1}) == ("rollout", -1)
    # One that would be busy for 0.8 has no room left; nor is there reason to as long as no groups wait.
    assert change(seen(False, ready=1.5, rollout=Load(0.4)), TWO | {"env": 1}) == ("", 0)
    assert change(seen(False, ready=0.5, rollout=idle), TWO | {"env": 1}) == ("", 0)
    two_engines = TWO | {"engine": 2, "env": 1}
    assert change(seen(False, ready=1.5, engine=Load(0.3)), two_engines) == ("engine", -1)
    assert change(seen(False, ready=1.5, engine=Load(0.3, queued=0.1)), two_engines) == ("", 0)


def test_limits_are_kept():
    assert change(seen(True), TWO | {"rollout": 4}) == ("", 0)
    full = seen(False, ready=2.0, free_slots=0, rollout=Load(0.0), env=Load(0.0), engine=Load(0.0))
    assert change(full, {"rollout": 1, "env": 1, "engine": 1}) == ("", 0)
    assert change(seen(True), limits={}) == ("", 0)


def test_nothing_changes_before_a_cool_down_has_been_seen():
    assert change(seen(True)[:6]) == ("", 0)
    assert change([]) == ("", 0)


def test_the_way_back_takes_three_cool_downs():
    full = seen(False, ready=2.0, free_slots=0, rollout=Load(0.0), start_s=100.0)
    counts = TWO | {"env": 1}
    assert change(full, counts, changes={"rollout": Change(90.0, 1)}) == ("", 0)
    assert change(full, counts, changes={"rollout": Change(90.0, -1)}) == ("rollout", -1)
    assert change(full, counts, changes={"rollout": Change(-20.0, 1)}) == ("rollout", -1)


def test_a_process_is_retired_when_two_whole_steps_were_seen_or_four_cool_downs():
    idle = {"ready": 2.0, "free_slots": 0, "rollout": Load(0.0)}
    counts = TWO | {"env": 1}
    assert change(seen(False, steps=1, **idle), counts) == ("", 0)
    assert change(seen([False] * 25, steps=1, **idle), counts) == ("rollout", -1)


def test_a_load_that_comes_and_goes_changes_nothing_after_the_first_worker():
    """Half an hour in which the trainer waits for one minute and works through the next."""
    counts, changes, window, made = dict(TWO) | {"env": 1}, {}, [], []
    for i in range(180):
        waits = i // 6 % 2 == 0
        load = Load(1.0 if waits else 0.0)
        one = Observation(
            10.0 * i, i // 12, waits, 0.0 if waits else 2.0, 3 if waits else 0, True, {"rollout": load}
        )
        window = trim([*window, one], COOLDOWN_S)
        found = decide(LIMITS, counts, window, changes, COOLDOWN_S)
        if found.step:
            counts[found.role] += found.step
            changes[found.role], window = Change(one.time_s, found.step), []
            made.append(found.step)
    assert -1 not in made
    assert len(made) <= 2
    assert counts["rollout"] <= 4


def test_a_window_is_kept_for_a_cool_down_and_for_two_steps_but_not_for_more_than_four_cool_downs():
    still = [Observation(10.0 * i, 7, False, 0.0, 1, True) for i in range(40)]
    assert trim(still, COOLDOWN_S)[0].time_s == 150.0
    window = [Observation(10.0 * i, i // 10, False, 0.0, 1, True) for i in range(40)]
    assert next(one.time_s for one in trim(window, COOLDOWN_S)) == 190.0
    assert next(one.time_s for one in trim(window, 300.0)) == 90.0


def test_loads_are_what_processes_say_of_themselves():
    workers = {
        "rollout-0": {"running": ["a", "b"], "groups_limit": 2, "refused": ""},
        "rollout-1": {"running": ["c"], "groups_limit": 2, "refused": ""},
        "rollout-2": {"running": [], "groups_limit": 2, "refused": "quarantined"},
    }
    assert worker_load(workers, {"rollout-0": 0.5, "rollout-1": 0.25}) == Load(0.75, cpu=0.375)
    assert worker_load({}, {}) is None
    service = {"places": 8, "sessions": 4, "queued": 2}
    assert env_load({"env": service}, {"env": 1.5}, 2) == Load(0.5, 0.5, 0.75)
    engines = {"engine-0": {"running": 4, "waiting": 1}, "engine-1": {"running": 0, "waiting": 0}}
    assert engine_load(engines, workers, 2) == Load(0.5, 0.25)
    # Six groups might be played by workers that may play three, since the caches are full.
    held = {name: state | {"groups_limit": 1} for name, state in workers.items()}
    assert engine_load(engines, held, 2) == Load(0.5, 1.0)
