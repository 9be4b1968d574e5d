"""The user is told of what the guard does, when it does it and by `asyncrl doctor RUN`."""

import re

from asyncrl.extensions.collapse_guard.monitor import GuardTold
from asyncrl.run.diagnosis import Observed, diagnose
from tests.run.test_diagnosis import steps


def test_a_run_whose_guard_has_acted_is_told_of():
    acted = steps(
        guard__message=lambda s: "" if s != 9 else "step 9: it fell; back to version 4; the rate is now 0.1",
        guard__rate_scale=0.5,
    )
    found = {finding.rule: finding.what for finding in diagnose(Observed(acted))}
    assert re.search(
        "acted in 1 steps and went back to a checkpoint in 1 of them; the learning rate is 0.5 .* step 9: it fell",
        found["guard_acted"],
    )
    assert "guard_acted" not in [finding.rule for finding in diagnose(Observed(steps()))]


def test_what_the_guard_did_in_a_step_is_shown_once_it_is_recorded():
    said = []
    told = GuardTold(said.append)
    told.on_step({"step": 8})
    told.on_step({"step": 9, "guard/message": "back to version 4"})
    assert said == ["collapse guard: back to version 4"]
