"""The evaluations of a run, in order."""

import json

from asyncrl.run.evaluations import evaluations
from tests.run.folders import EVALUATION, make_run


def test_evaluations_are_in_order_and_prefer_the_verdict_of_the_environment(tmp_path):
    folder = make_run(tmp_path / "run")
    no_verdict = EVALUATION | {"success": None, "success_ci": None}
    lines = [
        {"version": 5, "wall_s": 1.0, **no_verdict},
        {"version": 6, "wall_s": 1.0, "error": "engine died"},
    ]
    (folder / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [
        (one["version"], one["when"], one["what"], one["mean"], one["ci_low"]) for one in evaluations(folder)
    ]
    assert found == [(0, "before", "success", 0.5, 0.4), (5, "during", "reward", 0.4, 0.3)]
