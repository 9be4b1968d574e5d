"""The library against the vectors kept beside this file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.runner import run_vector

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_library_matches_the_vector(vector):
    result = run_vector(vector)
    assert result.status == "pass", result.complaints


def test_a_wrong_expectation_is_reported():
    vector = dict(VECTORS[0])
    vector["expected"] = {"adv": [x + 1e-6 for x in vector["expected"]["adv"]]}
    assert run_vector(vector).status == "fail"


def test_a_missing_output_is_reported():
    vector = dict(VECTORS[0])
    vector["expected"] = {**vector["expected"], "something": 1.0}
    assert run_vector(vector).complaints == ["something: no value"]


def test_an_unknown_family_is_not_implemented():
    assert run_vector({"name": "adv.unheard_of", "inputs": {}, "expected": {}}).status == "not implemented"
