"""No line of the main path names an optional feature, but for those that there were: their number only falls."""

import ast
from pathlib import Path

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).parent.parent

MOST = 91
"""Lower it when a feature leaves the main path; a feature that would raise it belongs behind a seam."""


def test_no_more_lines_of_the_main_path_name_a_feature():
    found = load_script("feature_lines").counted()
    naming = sum(count for count, _ in found.values())
    assert naming <= MOST, (
        f"{naming} lines name a feature; python scripts/feature_lines.py --lines shows them"
    )


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
