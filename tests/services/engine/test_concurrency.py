"""The number of groups at once follows the room in the engines' caches."""

from asyncrl.services.engine.concurrency import ADJUST_EVERY_S, Concurrency, next_limit
from asyncrl.services.engine.placement import EngineLoad, Health

FULL = EngineLoad("a", kv_usage=0.97, waiting=3)
ROOM = EngineLoad("b", kv_usage=0.2)
BUSY = EngineLoad("c", kv_usage=0.9)


def test_it_falls_by_a_quarter_while_every_engine_is_full_and_never_below_one():
    assert next_limit(16, 16, [FULL, FULL]) == 12
    assert next_limit(12, 16, [FULL]) == 9
    assert next_limit(1, 16, [FULL]) == 1


def test_one_engine_with_room_keeps_it():
    assert next_limit(16, 16, [FULL, ROOM]) == 16
    assert next_limit(8, 16, [FULL, ROOM]) == 8


def test_it_rises_by_one_while_all_have_room_and_never_beyond_the_recipes():
    assert next_limit(8, 16, [ROOM, ROOM]) == 9
    assert next_limit(16, 16, [ROOM]) == 16
    assert next_limit(8, 16, [ROOM, BUSY]) == 8


def test_engines_that_do_not_serve_say_nothing():
    dead = EngineLoad("d", health=Health.DEAD)
    suspect = EngineLoad("e", health=Health.SUSPECT, kv_usage=0.1)
    assert next_limit(8, 16, [dead, suspect]) == 8
    assert next_limit(8, 16, [FULL, dead]) == 6


def test_it_looks_no_more_often_than_the_engines_are_asked():
    now, looks = [0.0], []

    def loads():
        looks.append(now[0])
        return [FULL]

    concurrency = Concurrency(loads, 8, lambda: now[0])
    assert [concurrency.limit() for _ in range(5)] == [8] * 5
    now[0] = ADJUST_EVERY_S
    assert [concurrency.limit() for _ in range(5)] == [6] * 5
    assert looks == [ADJUST_EVERY_S]
