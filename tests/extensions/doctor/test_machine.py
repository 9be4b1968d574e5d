"""What `asyncrl doctor` says of a machine that gives too little."""

import pytest

from asyncrl.extensions.doctor import command as doctor
from tests.test_locks import PYTHONS

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("total", "free", "advice"),
    [
        (64 * MIB, 64 * MIB, "docker run --ipc=host"),
        (16 * GIB, 1 * MIB, "engine.weights_dir"),
        (16 * GIB, 16 * GIB, ""),
    ],
)
def test_shared_memory_that_is_too_small_is_told_with_what_to_do(total, free, advice):
    """gpustack#5014, ray#13624."""
    said = doctor._shm_problem(total, free)
    assert advice in said
    assert bool(said) == bool(advice)


@pytest.mark.parametrize(("files", "advice"), [(64, "raise the hard limit (ulimit -Hn"), (65536, "")])
def test_too_few_open_files_are_told(monkeypatch, files, advice):
    """NeMo-RL#988."""
    monkeypatch.setattr(doctor, "open_files", lambda: files)
    said = dict(doctor.check_memory())[f"{files} open files"]
    assert advice in said
    assert bool(said) == bool(advice)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ((3, 10, 12), "Python 3.11 to 3.13 is needed, this is 3.10.12"),
        ((3, 11, 2), ""),
        ((3, 13, 9), ""),
        ((3, 14, 0), "Python 3.11 to 3.13 is needed, this is 3.14.0"),
    ],
)
def test_a_python_that_the_locks_have_no_wheels_for_is_told(version, problem):
    assert doctor.check_python(version) == [(f"python {'.'.join(map(str, version))}", problem)]


def test_the_pythons_of_the_doctor_are_those_of_the_locks():
    assert [f"3.{minor}" for minor in range(doctor.OLDEST_PYTHON[1], doctor.NEWEST_PYTHON[1] + 1)] == [
        *PYTHONS
    ]
