"""Features exclude each other in pairs as they are meant to: `refused.json` has what is wrong of which."""

import itertools
import json
import pkgutil
from pathlib import Path

import pytest

import asyncrl.conflicts
from asyncrl.conflicts import registry
from asyncrl.extensions.table import FOLDER, rows
from tests.conflicts.features import SETTINGS, problems, with_features

REFUSED = json.loads(Path(__file__).with_name("refused.json").read_text())
"""The problems of each feature alone, of some, and of each pair ("one + other") of which they are not those of both."""
NO_FEATURES = {"between", "protocol", "registry"}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_feature_asks_of_a_plain_recipe(name):
    assert sorted(problems(with_features(name))) == sorted(REFUSED.get(name, []))


@pytest.mark.slow
def test_every_pair_of_features_is_refused_or_accepted_as_it_is_meant_to_be():
    wrong = []
    for pair in itertools.combinations(SETTINGS, 2):
        both = {problem for name in pair for problem in REFUSED.get(name, [])}
        expected = set(REFUSED.get(" + ".join(pair), both))
        if (found := set(problems(with_features(*pair)))) != expected:
            wrong.append(f"{pair}: {sorted(found ^ expected)}")
    assert not wrong, "\n".join(wrong)


def test_the_table_names_features_that_there_are():
    assert {name for key in REFUSED for name in key.split(" + ")} <= set(SETTINGS)


def test_every_file_of_a_feature_is_asked():
    files = {module.name for module in pkgutil.iter_modules(asyncrl.conflicts.__path__)} - NO_FEATURES
    asked = {name for name in files if getattr(registry, name).CONFLICTS in registry.FEATURES}
    assert asked == files
    of_extensions = {row.path for row in rows("conflicts")}
    assert of_extensions == {
        f"asyncrl.extensions.{file.parent.name}.{file.stem}:CONFLICTS"
        for file in FOLDER.glob("*/*conflicts.py")
    }
    assert len(registry.FEATURES) == len(files) + len(of_extensions)
