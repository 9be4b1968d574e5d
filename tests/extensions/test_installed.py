"""Entry points of other packages are found by name, and their settings are checked in their source."""

import sys

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.installed import extension_problems, installed, load_extension

GROUP = "asyncrl.trainer_callbacks"
ENTRIES = """[asyncrl.trainer_callbacks]
counting = counting_extension:counting
made = counting_extension:made
gone = counting_extension:gone
nowhere = no_such_extension:f
"""
SOURCE = """
imported = True


def counting(context, *, every: int, share: float = 0.5, kind: str | None = None):
    return (context, every, share, kind)


made = counting
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package as it is when it has been installed."""
    info = tmp_path / "counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "counting_extension.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("counting_extension", None)


def problems(**asked):
    return list(extension_problems(GROUP, asked))


def test_extensions_are_found_by_name():
    found = installed(GROUP)
    assert found["counting"] == "counting_extension:counting"
    assert load_extension(GROUP, "counting")("run", every=2) == ("run", 2, 0.5, None)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"every": 2}, []),
        ({"every": 2, "share": 1, "kind": "a"}, []),
        ({}, ["counting.every: counting_extension:counting needs this parameter"]),
        ({"every": 2.5}, ["counting.every: got 2.5, allowed: int"]),
        (
            {"every": 2, "shares": 1},
            [
                "counting.shares: counting_extension:counting has no such parameter; did you mean 'share'? Allowed: "
                "every, kind, share"
            ],
        ),
    ],
)
def test_settings_are_the_keyword_only_parameters_of_the_factory(settings, expected):
    assert problems(counting=settings) == [f"extensions.trainer_callbacks.{text}" for text in expected]
    assert "counting_extension" not in sys.modules, "it is not imported to be checked"


def test_what_is_no_function_in_the_source_is_not_checked_and_what_is_not_there_is_refused():
    assert problems(made={"anything": 1}) == []
    (found,) = problems(gone={})
    assert found.startswith(
        "extensions.trainer_callbacks.gone: module counting_extension has no function 'gone'"
    )
    (found,) = problems(nowhere={})
    assert found.startswith("extensions.trainer_callbacks.nowhere: 'no_such_extension' cannot be imported")
    (found,) = problems(count={})
    assert "no installed package has this entry point in the group 'asyncrl.trainer_callbacks'" in found
    assert "counting" in found


def test_one_that_is_not_installed_cannot_be_loaded():
    with pytest.raises(ConfigError, match=r"extensions\.trainer_callbacks\.absent: no installed package has"):
        load_extension(GROUP, "absent")
