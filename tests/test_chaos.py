"""`scripts/chaos.py` on a real run: kills at random, and nothing is lost."""

import json
import subprocess
import sys

import pytest

from tests.runs import environment
from tests.scripts import SCRIPTS

pytestmark = pytest.mark.slow
UNDISTURBED_CI_HIGH = 0.0714


@pytest.mark.timeout(1800)
def test_ten_kills_at_random_lose_nothing(workplace):
    report = workplace / "chaos.json"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPTS / "chaos.py"), "--kills", "10", "--seed", "0", "--json", str(report)),
            *("--no-baseline", "--recipe", str(workplace / "recipe.toml"), "eval.tasks=50", "env.processes=2"),
            # The base model of the undisturbed run below.
            "sft.steps=40",
        ],
        env=environment(), capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["kills"] == 10
    assert all(found["checks"].values())
    # Success is within noise of the undisturbed run of this recipe and seed, which solves none of its 50 tasks.
    assert found["eval_after"]["tasks"] == 50
    assert found["eval_after"]["ci_low"] <= UNDISTURBED_CI_HIGH
