"""What is measured once is remembered as long as it would be the same."""

import pytest

from asyncrl.extensions.planning import remembered as module
from asyncrl.extensions.planning.remembered import remembered


@pytest.fixture
def measurements(tmp_path, monkeypatch):
    """`measure(subject)` -> what is found for it, and the list of what has been measured."""
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    measured = []

    def measure(subject):
        def now():
            measured.append(subject)
            return {"bytes": len(measured)}

        return remembered(subject, now)

    return measure, measured


def test_an_equal_subject_is_measured_once(measurements):
    measure, measured = measurements
    found = [measure(["qwen3", {"rank": rank}]) for rank in (8, 8, 16, 8)]
    assert found == [{"bytes": 1}, {"bytes": 1}, {"bytes": 2}, {"bytes": 1}]
    assert len(measured) == 2


def test_changed_code_measures_again(measurements, monkeypatch):
    measure, _ = measurements
    assert measure("a") == {"bytes": 1}
    monkeypatch.setattr(module, "_code", lambda: ["other"])
    assert measure("a") == {"bytes": 2}


def test_a_users_own_code_and_an_unwritable_folder_are_measured_each_time(measurements, monkeypatch):
    measure, _ = measurements
    assert [measure({"loss": {"name": "my_loss:my_loss"}}) for _ in range(2)] == [{"bytes": 1}, {"bytes": 2}]
    monkeypatch.setenv("ASYNCRL_CACHE", "/proc/none")
    assert [measure("a") for _ in range(2)] == [{"bytes": 3}, {"bytes": 4}]


def test_what_is_kept_depends_on_every_module_that_measures():
    module._code.cache_clear()
    digest, *libraries = module._code()
    assert len(digest) == 24
    assert [name.split()[0] for name in libraries] == list(module.LIBRARIES)
