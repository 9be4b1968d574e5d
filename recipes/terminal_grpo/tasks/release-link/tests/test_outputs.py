import os
from pathlib import Path


def test_current_is_a_relative_link_to_the_newest_release():
    assert os.readlink("/app/current") in ("releases/1.10", "releases/1.10/", "./releases/1.10")
    assert Path("/app/current/VERSION").read_text() == "1.10\n"


def test_the_two_newest_releases_are_kept():
    assert sorted(os.listdir("/app/releases")) == ["1.10", "1.9"]
