"""What docs/environments.md shows works."""

import re
from pathlib import Path

from asyncrl.env.registry import ENVS
from asyncrl.extensions.env_tools.check import check_env

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text()


def test_the_example_is_about_thirty_lines_and_passes_every_check(tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line]) <= 32
    (tmp_path / "page_env.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    findings = {f.name: f for f in check_env("page_env:Backwards")}
    assert [f for f in findings.values() if not f.ok] == []
    assert "1.000 on level 3" in findings["oracle scores"].seen


def test_every_link_of_the_page_leads_somewhere_and_every_name_is_registered():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", PAGE)]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    named = re.findall(r"^\| \[(\w+)\]", PAGE.split("\n## ")[0], re.MULTILINE)
    assert named
    assert set(named) <= set(ENVS)


def test_the_checks_of_the_page_are_those_of_the_command():
    rows = PAGE.split("## What the check holds")[1]
    names = re.findall(r"^\| ([a-z][^|]+?) \|", rows, re.MULTILINE)[1:]
    assert set(names) == {f.name for f in check_env("countdown", num_tasks=5)}
