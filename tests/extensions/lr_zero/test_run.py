"""A whole run at learning rate 0, with real engine and trainer: nothing moves."""

import pytest

from tests.runs import RECIPE, command, to_its_end


@pytest.mark.slow
def test_a_run_at_learning_rate_zero_changes_nothing_and_says_so(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    words = ["--check-lr-zero", f"run.folder={tmp_path / 'runs'}", "run.name=still", "train.num_steps=5"]
    done = to_its_end(command(tmp_path, str(tmp_path / "recipe.toml"), *words))
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line.split(":")[0] for line in done.stdout.splitlines()[-4:]]
    assert verdicts == [
        "held    ratios stay 1",
        "held    log-probabilities stay as sampled",
        "held    weights unchanged",
        "held    reward flat",
    ]
