"""`scripts/chaos.py` on a real run over several machines: one is killed, and nothing is lost."""

import json
import subprocess
import sys

import pytest

from scripts.testing.namespaces import problem
from tests.runs import environment
from tests.scripts import SCRIPTS

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_a_killed_machine_loses_nothing(workplace):
    if refused := problem():
        pytest.skip(refused)
    report = workplace / "chaos.json"
    settings = ["eval.tasks=0", "train.num_steps=8", "train.ranks=2", "train.nodes=2", "train.zero_stage=3"]
    settings += ["env.services=2"]
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPTS / "chaos.py"), "--nodes", "3", "--kills", "1", "--seed", "0"),
            *("--json", str(report), "--no-baseline", "--recipe", str(workplace / "recipe.toml"), *settings),
        ],
        env=environment(), capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["kills_by_role"] == {"node": 1}
    assert found["buffers_lost"] == 1
    assert all(found["checks"].values())
    assert found["restarts"]
