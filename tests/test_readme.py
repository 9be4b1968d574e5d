"""What the README shows works."""

import re
import tomllib
from pathlib import Path

from asyncrl.env.protocol import Action
from asyncrl.types import Task

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_environment_is_as_short_as_said_and_plays():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len(code.splitlines()) <= 35
    names: dict = {}
    exec(code, names)
    env = names["GuessNumber"](Task("t", "my_env:GuessNumber", seed=4))
    assert "from 1 to 20" in env.reset()[0]["content"]
    low, high = 1, 20
    for _ in range(env.max_turns):
        guess = (low + high) // 2
        step = env.step(Action(str(guess)))
        if step.done:
            break
        hint = step.messages[0]["content"]
        low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
    assert (step.reward, step.success) == (1.0, True)
    assert env.__class__(Task("t", "e", 1)).step(Action("north")).messages[0]["content"] == "a number, please"


def test_every_file_the_readme_links_to_exists():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_the_commands_the_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "test-all"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"asyncrl": "asyncrl.cli:main"}


def test_no_number_is_left_to_fill_in():
    assert "@@" not in README
