"""`asyncrl doctor RUN` does not take what stronger opponents do to a reward for a collapse."""

from asyncrl.run.diagnosis import Observed, diagnose
from tests.run.test_diagnosis import steps


def test_a_reward_that_falls_against_a_population_is_no_collapse():
    falling = {"reward__mean": lambda step: 0.9 if step < 10 else 0.3}
    assert "collapse" in [found.rule for found in diagnose(Observed(steps(**falling)))]
    against = Observed(steps(**falling, buffer__opponents_members=4))
    assert "collapse" not in [found.rule for found in diagnose(against)]
