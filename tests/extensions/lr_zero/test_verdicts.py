"""A run at learning rate 0 is judged by what moved though nothing was trained."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncrl.cli import main
from asyncrl.extensions.lr_zero.verdicts import changed_tensors, verdicts, weights_of

STILL = {"ratio/min": 1.0, "ratio/max": 1.0000001, "mismatch/abs": 2e-7, "reward/mean": 0.5}


def steps(count=8, **changes):
    return [STILL | {"step": i} | {name: value(i) for name, value in changes.items()} for i in range(count)]


def held(*arguments):
    return [verdict.held for verdict in verdicts(*arguments)]


def test_where_nothing_moves_everything_holds():
    assert held(steps(), "float32", []) == [True] * 4
    noise = np.random.default_rng(0).normal(0.5, 0.1, 8)
    assert held(steps(**{"reward/mean": lambda i: float(noise[i])}), "float32", []) == [True] * 4


@pytest.mark.parametrize(
    ("changes", "differ", "failed", "says"),
    [
        ({"ratio/min": lambda i: 1 - 0.01 * i}, [], 0, "farthest from 1: 0.93, limit 0.001"),
        ({"mismatch/abs": lambda i: 0.02 * (i == 5)}, [], 1, "mean difference up to 0.02 nats, limit 0.001"),
        ({}, ["a", "b"], 2, "2 tensors differ, such as a"),
        ({"reward/mean": lambda i: 0.1 * i + 0.01 * (i % 2)}, [], 3, "+0.1005 a step over 8 steps"),
    ],
)
def test_what_moves_is_named_with_its_numbers(changes, differ, failed, says):
    found = verdicts(steps(**changes), "float32", differ)
    assert [number for number, verdict in enumerate(found) if not verdict.held] == [failed]
    assert says in found[failed].numbers


def test_rounding_of_bfloat16_is_no_change():
    changes = {"ratio/max": lambda i: 1.02, "mismatch/abs": lambda i: 0.01}
    assert held(steps(**changes), "bfloat16", []) == [True] * 4
    assert held(steps(**changes), "float32", []) == [False, False, True, True]


def test_what_was_not_measured_is_not_said_to_hold():
    assert held([{"step": 1}], "float32", None) == [None] * 4


def test_weights_are_compared_by_their_bytes_and_types(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}
    for name, change in (("before", {}), ("same", {}), ("other", {"b": np.ones(4, np.float16)})):
        (tmp_path / name).mkdir()
        save_file(tensors | change, tmp_path / name / "model.safetensors")
    before, same, other = (weights_of(tmp_path / name) for name in ("before", "same", "other"))
    assert changed_tensors(before, same) == []
    assert changed_tensors(before, other) == ["b"]
    assert changed_tensors(before, {"c": "x"}) is None
    assert changed_tensors({}, weights_of(tmp_path)) is None


def test_a_check_is_of_a_new_run(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--check-lr-zero"]) == 2
    assert (
        "--check-lr-zero: is a run of its own, and cannot be combined with --resume"
        in capsys.readouterr().err
    )
