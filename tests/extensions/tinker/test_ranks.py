"""Several ranks compute what one would, and end where they would have ended, whichever of them dies or hangs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.extensions.tinker.ranks import shares
from tests.extensions.tinker import ranks_run
from tests.extensions.tinker.ranks_run import POLICY

PATIENT_S, HANGS_S = 600, 20


def test_rows_are_divided_by_their_tokens_always_alike():
    # 8 to the first; 5 and 4 to the second; 3 to the first, which has 8 of 9; 2 to the second, and so on.
    assert shares([4, 3, 8, 1, 5, 2], 2) == [[2, 1, 3], [4, 0, 5]]
    assert shares([4, 3, 8, 1, 5, 2], 3) == [[2], [4, 5, 3], [0, 1]]
    assert shares([7, 7, 7], 2) == [[0, 2], [1]]
    assert shares([5], 3) == [[0], [], []] and shares([5, 6], 1) == [[1, 0]]


def run(model, folder, ranks, timeout_s, *kill):
    words = (model, str(folder), str(ranks), str(timeout_s), *map(str, kill))
    return subprocess.run(
        [sys.executable, "-P", "-m", "tests.extensions.tinker.ranks_run", *words], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}, check=False,
    )  # fmt: skip


def answers(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def weights(folder):
    return load_file(folder / "policies" / POLICY / "weights" / "end.safetensors")


def alike(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def close(first, second):
    """Whether adapters agree to float32's rounding, tensor by tensor."""
    names = [name for name in first if not name.startswith("adam.")]
    assert first.keys() == second.keys() and names
    return all((first[name] - second[name]).norm() <= 1e-6 * first[name].norm() for name in names)


def assert_answers_close(found, wanted):
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        if "logprobs" in mine:
            assert mine["loss:sum"] == pytest.approx(theirs["loss:sum"], rel=1e-6)
            for row, other in zip(mine["logprobs"], theirs["logprobs"], strict=True):
                np.testing.assert_allclose(row, other, rtol=1e-6)
        elif "metrics" in mine:
            assert mine["metrics"] == pytest.approx(theirs["metrics"], rel=1e-6)
        else:
            assert mine == theirs


@pytest.fixture(scope="module")
def alone(tiny_model, tmp_path_factory):
    """The folder and the answers of one rank."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, ranks_run.play(tiny_model, str(folder), "1", str(PATIENT_S))


@pytest.fixture(scope="module")
def undisturbed(tiny_model, tmp_path_factory):
    """The folder and the answers of two ranks."""
    folder = tmp_path_factory.mktemp("two")
    return folder, answers(run(tiny_model, folder, 2, PATIENT_S))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_and_three_ranks_answer_and_train_as_one_does(tiny_model, tmp_path, alone, undisturbed):
    three = answers(run(tiny_model, tmp_path, 3, PATIENT_S))
    for folder, found in (undisturbed, (tmp_path, three)):
        assert_answers_close(found, alone[1])
        assert close(weights(folder), weights(alone[0]))
    # Row 4, which rank 1 has, marks no token; the requests after it are answered.
    assert three[3] == {
        "error": "sequence_ratio_mask: marks no token", "category": "user", "failed": True,
    }  # fmt: skip


HANGS = f"hangs: no answer within {HANGS_S} s (train.stall_timeout_s)"
HANGS_TOO = f"rank 0 hangs: no answer within {2 * HANGS_S} s (twice train.stall_timeout_s)"
ENDED = "rank 1 has ended with exit code -9"
ENDS = (
    (("SIGSTOP", 1, "compute", "before", 2), 1, HANGS),  # While it computes rows.
    (("SIGSTOP", 0, "compute", "before", 1), -9, HANGS_TOO),
    (("SIGKILL", 1, "compute", "after", 1), 1, ENDED),
    (("SIGKILL", 0, "step", "before", 1), -9, ""),  # Between a gradient and its step.
    (("SIGKILL", 1, "step", "before", 1), 1, ENDED),
    (("SIGKILL", 1, "save", "after", 1), 1, ENDED),  # After a step, before its answer.
    (("SIGKILL", 0, "save", "after", 1), -9, ""),
)
"""What happens to one server after another on a folder: the signal, the exit code of rank 0 and what it says."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ranks_that_die_and_hang_leave_weights_and_answers_as_they_would_have_been(
    tiny_model, tmp_path, undisturbed
):
    for signal, code, says in ENDS:
        done = run(tiny_model, tmp_path, 2, HANGS_S if says in (HANGS, HANGS_TOO) else PATIENT_S, *signal)
        assert done.returncode == code and says in done.stderr, (signal, done.stderr)
    found = answers(run(tiny_model, tmp_path, 2, PATIENT_S))
    assert found == undisturbed[1]
    assert alike(weights(tmp_path), weights(undisturbed[0]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_one_rank_has_begun_two_go_on_with_to_rounding(tiny_model, tmp_path, alone):
    done = run(tiny_model, tmp_path, 1, PATIENT_S, "SIGKILL", 0, "step", "before", 2)
    assert done.returncode == -9, done.stderr
    assert_answers_close(answers(run(tiny_model, tmp_path, 2, PATIENT_S)), alone[1])
    assert close(weights(tmp_path), weights(alone[0]))
