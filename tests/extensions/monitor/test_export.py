"""An exported file needs nothing but a browser."""

import json
import re

import pytest

from asyncrl.extensions.monitor.episodes import EpisodeTable
from asyncrl.extensions.monitor.export import exported_page
from asyncrl.extensions.monitor.steps import StepColumns
from asyncrl.extensions.monitor.tokens import TokenTexts
from tests.run.folders import make_run


@pytest.mark.slow
def test_a_file_holds_its_scripts_and_its_data_and_asks_for_nothing(tmp_path):
    folder = make_run(tmp_path / "run", steps=3, groups=2)
    page = exported_page({"run": (folder, StepColumns(folder), EpisodeTable(folder), TokenTexts(folder))})
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page) == []
    text = re.search(r"window\.ASYNCRL_EXPORT = (.*);</script>", page)
    assert text is not None
    # Nothing that would end the script, or keep it from ending.
    assert "<" not in text[1]
    data = json.loads(text[1])
    run = data["run"]["run"]
    assert run["steps"]["reward/mean"] == [0.1, 0.2, 0.3]
    assert len(run["episodes"]) == len(run["episode"]) == 24
    assert run["episode"]["1/g-t1-0/0"]["messages"][-1]["content"] == "Done </script> & gone"
    assert run["description"]["config"]["env"]["name"] == "gridworld"


def test_what_a_policy_writes_neither_ends_the_script_of_the_data_nor_keeps_it_open(tmp_path):
    folder = make_run(tmp_path / "<!--<script>", steps=1, groups=1)
    name = "<!--<script>"
    page = exported_page({name: (folder, StepColumns(folder), EpisodeTable(folder), TokenTexts(folder))})
    text = re.search(r"window\.ASYNCRL_EXPORT = (.*);</script>", page)
    assert text is not None and "<" not in text[1]
    assert list(json.loads(text[1])["run"]) == [name]
    # As a browser reads it: no script is open at the end.
    assert page.count("<!--") == page.count("-->")
