"""Each recipe for GPUs fits the cards in its name by the planner's sums, and takes its rows from the known sets."""

import re

import pytest

from asyncrl.config import PACKAGED_RECIPES
from asyncrl.extensions.planning.load import load_for_gpus
from asyncrl.extensions.planning.predict import Planner
from asyncrl.rows.known_sets import known_sets

GIB = 2**30
CARDS = re.compile(r"_(?:(\d+)x)?(\d+)gb(?:_|$)")
"""How many, and the memory of one."""
RECIPES = sorted(
    path.parent.name for path in PACKAGED_RECIPES.glob("*/recipe.toml") if CARDS.search(path.parent.name)
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_fits_the_cards_in_its_name(recipe):
    count, memory = CARDS.search(recipe).groups()
    planner = Planner(int(memory) * GIB, int(count or 1))
    prediction = planner.predict(load_for_gpus(recipe))
    assert prediction.fits, prediction


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_takes_its_rows_from_the_table_of_sets_and_says_little_of_its_own(recipe):
    config = load_for_gpus(recipe)
    assert config.data.set in known_sets()
    lines = (PACKAGED_RECIPES / recipe / "recipe.toml").read_text().splitlines()
    own = [line for line in lines if "=" in line and not line.startswith("#")]
    assert len(own) <= 24


def test_the_kinds_of_work_are_there():
    assert len(RECIPES) == 12
