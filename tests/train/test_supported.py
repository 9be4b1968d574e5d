"""Recipes whose objective lacks something are refused before anything starts; every preset has a recipe."""

import subprocess
import sys

import pytest

from asyncrl.algo.presets import PRESETS
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.train.supported import check_supported

TEACHER = {"path": "teacher"}


def recipe(algo, **sections):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "algo": algo, **sections})


@pytest.mark.parametrize(
    ("algo", "sections", "message"),
    [
        ({"preset": "opd"}, {}, "teacher.path: this objective needs a teacher"),
        (
            {"preset": "opd_full"},
            {"teacher": {"url": "http://t"}},
            "whole distribution, which no server gives",
        ),
        (
            {"preset": "opd"},
            {"teacher": {"url": "http://t"}, "rollout": {"temperature": 0.5}},
            r"teacher.url: .* rollout.temperature must be 1, got 0.5",
        ),
        (
            {"preset": "sat"},
            {"reference": {"url": "http://r", "refresh_every": 5}},
            "reference.refresh_every: a served reference cannot be refreshed",
        ),
        (
            {"preset": "grpo"},
            {"staleness_control": {"enabled": True, "minimum": 3}},
            "staleness_control.minimum: must be at most buffer.max_staleness=1, got 3",
        ),
        (
            {"preset": "grpo"},
            {"staleness_control": {"enabled": True, "low_ess": 0.8}},
            "staleness_control.low_ess: must be below high_ess=0.7, got 0.8",
        ),
        (
            {"preset": "vcpo", "advantage": {"score": "gradient"}},
            {"train": {"zero_stage": 3}},
            "needs train.zero_stage below 3",
        ),
    ],
)
def test_what_a_recipe_lacks_is_named(algo, sections, message):
    with pytest.raises(ConfigError, match=message):
        check_supported(recipe(algo, **sections))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_accepted(preset):
    settings = check_supported(recipe({"preset": preset}, teacher=TEACHER))
    assert settings["loss"]["name"]


def test_the_check_loads_no_torch():
    code = "import sys, asyncrl.train.supported; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
