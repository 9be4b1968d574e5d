"""Whatever extensions add to one engine goes together: pair by pair, nothing is told twice or taken back."""

import importlib
import itertools
from collections import Counter

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.services.engine.additions import additions
from tests.extensions.test_table import SLEEP

OF_GPUS = ("batch_invariance", "kv_offload", "sleep")
"""What vLLM's build for CPUs refuses."""
SETTINGS = {
    "batch_invariance": {"engine": {"batch_invariant": True}},
    "commitments": {"train": {"commitments": True}},
    "kv_offload": {"engine": {"kv_offload_gib": 2.0}},
    "league": {"opponents": {"choose": "uniform"}, "lora": {"rank": 4}},
    "lora": {"lora": {"rank": 4}},
    "old_policy": {"train": {"old_policy": "interrupt"}},
    "quantization": {"engine": {"quantization": "int8"}},
    "router_replay": {"train": {"router_replay": True}},
    "sleep": SLEEP,
    "speculation": {"engine": {"speculative": {"method": "ngram"}}},
}
"""Settings by which each extension adds something to engines."""
STANDS_ON = {"league": {"lora"}}
"""What else those settings ask for."""
PAIRS = list(itertools.combinations(sorted(SETTINGS), 2))


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    for name in OF_GPUS:
        module = importlib.import_module(f"asyncrl.extensions.{name}.engine")
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def with_both(one, other):
    """Return a recipe with two extensions; None where they exclude each other."""
    recipe = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
    for given in (SETTINGS[one], SETTINGS[other]):
        for section, keys in given.items():
            recipe[section] = recipe.get(section, {}) | keys
    try:
        return parse_config(recipe)
    except ConfigError:
        return None


def asking(config):
    return {row.extension for row in rows("engine_additions") if row.wanted(config)}


def test_every_extension_that_adds_to_engines_is_tried():
    assert {row.extension for row in rows("engine_additions")} == set(SETTINGS)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_an_engine_with_two_extensions_is_told_what_both_add_and_nothing_twice(pair):
    if (config := with_both(*pair)) is None:
        return
    assert asking(config) == set(pair).union(*(STANDS_ON.get(one, ()) for one in pair))
    added = additions(config, True)
    told = Counter(word for one in added for word in one.arguments if word.startswith("--"))
    variables = Counter(name for one in added for name in one.variables)
    assert [name for name, count in (told | variables).items() if count > 1] == []
    alone = [additions(with_both(name, name), True) for name in pair]
    both = [(one.arguments, dict(one.variables), dict(one.numbers)) for one in added]
    assert len(both) == len(asking(config))
    assert set(map(str, both)) == {
        str((one.arguments, dict(one.variables), dict(one.numbers))) for each in alone for one in each
    }


def test_most_pairs_go_together():
    together = [pair for pair in PAIRS if with_both(*pair) is not None]
    assert len(together) > len(PAIRS) / 2
    assert ("commitments", "router_replay") in together
