"""An engine's health from answers, failures and silence."""

from asyncrl.services.engine.health import CATCH_UP_GRACE_S, DEAD_AFTER_S, EngineHealth
from asyncrl.services.engine.placement import Health


def test_a_failure_makes_suspect_an_answer_makes_healthy():
    engine = EngineHealth(now=0.0)
    assert engine.health(100.0) is Health.HEALTHY
    engine.failed(refused=False)
    assert engine.health(1.0) is Health.SUSPECT
    engine.answered(2.0, 5)
    assert (engine.health(2.0), engine.version) == (Health.HEALTHY, 5)


def test_refused_connections_kill_quickly_and_silence_slowly():
    engine = EngineHealth(now=0.0)
    engine.failed(refused=True)
    engine.failed(refused=True)
    assert engine.health(0.5) is Health.SUSPECT
    engine.failed(refused=True)
    assert engine.health(0.5) is Health.DEAD
    silent = EngineHealth(now=0.0)
    for _ in range(9):
        silent.failed(refused=False)
    assert silent.health(DEAD_AFTER_S - 0.1) is Health.SUSPECT
    assert silent.health(DEAD_AFTER_S) is Health.DEAD


def test_an_engine_that_serves_old_weights_has_a_grace_while_all_commit():
    engine = EngineHealth(now=0.0)
    assert engine.health(50.0, newest=5, newest_since=1.0) is Health.HEALTHY
    engine.answered(1.5, version=4)
    assert engine.health(1.0 + CATCH_UP_GRACE_S / 2, 5, 1.0) is Health.HEALTHY
    assert engine.health(1.0 + CATCH_UP_GRACE_S, 5, 1.0) is Health.CATCHING_UP
    engine.answered(3.0, version=5)
    assert engine.health(3.0, 5, 1.0) is Health.HEALTHY


def test_an_engine_back_from_the_dead_catches_up_before_it_counts():
    engine = EngineHealth(now=0.0)
    for _ in range(3):
        engine.failed(refused=True)
    engine.answered(60.0, version=0)
    assert engine.health(60.0, 5, 30.0) is Health.CATCHING_UP
    engine.answered(61.0, version=5)
    assert engine.health(61.0, 5, 30.0) is Health.HEALTHY
