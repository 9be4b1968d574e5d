"""No line of the main path names an optional feature, and its central files stay small."""

import ast
from pathlib import Path

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).parent.parent

CENTRAL = (
    "asyncrl/algo/objective.py",
    "asyncrl/buffer/ledger.py",
    "asyncrl/config_checks.py",
    "asyncrl/rollout/group.py",
    "asyncrl/rollout/worker.py",
    "asyncrl/train/step/step.py",
    "asyncrl/train/loop/trainer.py",
    "asyncrl/weights/publish.py",
    "services/buffer/service.py",
    "services/trainer/service.py",
)
"""The files in which most features were once wired: each holds what one process, step or transaction does."""
MOST_CENTRAL_LINES = 3000


def test_no_line_of_the_main_path_names_a_feature():
    found = load_script("feature_lines").counted()
    naming = {path: count for path, (count, _) in found.items() if count}
    assert not naming, f"{naming} lines name a feature; python scripts/feature_lines.py --lines shows them"


def test_the_central_files_stay_small_together():
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in CENTRAL}
    assert sum(lines.values()) <= MOST_CENTRAL_LINES, lines


@pytest.mark.parametrize(
    ("path", "most"), [("asyncrl/config_checks.py", 100), ("asyncrl/train/loop/trainer.py", 350)]
)
def test_a_central_file_stays_small(path, most):
    assert len((ROOT / path).read_text().splitlines()) <= most


def test_the_trainer_is_made_of_at_most_eight_parts():
    tree = ast.parse((ROOT / "asyncrl/train/loop/trainer.py").read_text())
    (made,) = [node for node in ast.walk(tree) if getattr(node, "name", "") == "__init__"]
    assert len(made.args.args) - 1 + len(made.args.kwonlyargs) <= 8


def test_the_main_path_is_that_of_the_architectures_page():
    page = (
        "## The way of a task\n`asyncrl/a.py:f`, `services/b/c.py`\n### Beside it\n`asyncrl/d.py`\n"
        "## Folders\n`asyncrl/e.py`\n"
    )
    found = load_script("feature_lines").main_path(page)
    assert found == [
        "asyncrl/a.py",
        "asyncrl/config_checks.py",
        "services/b/c.py",
        "services/engine/retrying.py",
        "services/engine/router.py",
        "services/trainer/service.py",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import timedelta",
        "class EngineRouter:",
        "return_when=asyncio.FIRST_COMPLETED",
        "All ranks call it. A collective.",
        "optimizer.custom_loss_scaler = True",
    ],
)
def test_a_word_that_only_contains_a_features_name_is_not_counted(text):
    assert load_script("feature_lines").feature_lines(text) == []


def test_a_line_that_names_a_feature_is_found_in_code_and_comment():
    text = "def take(self):\n    self.swarm.draw()\n    # the Swarm's\n    return 1\n"
    assert load_script("feature_lines").feature_lines(text) == [
        (2, "    self.swarm.draw()"), (3, "    # the Swarm's"),
    ]  # fmt: skip
