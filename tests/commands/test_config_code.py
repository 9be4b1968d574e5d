"""`asyncrl config` of a stranger's recipe runs what it names; with `--no-code` nothing of it."""

import json

import pytest

from asyncrl.cli import main

CODE = (
    "open({mark!r}, 'w').close()\nraise RuntimeError('of a stranger')\n"
    "def advantage(batch): ...\ndef loss(inputs): ...\ndef reward(text): ..."
)
GRIDWORLD = '[env]\nname = "gridworld"\n'
NAMING = {
    "an environment": '[env]\nname = "{file}:Env"\n',
    "a module of a folder": '[run]\npython_path = ["{folder}"]\n[env]\nname = "stranger:Env"\n',
    "a loss": GRIDWORLD + '[algo]\nloss = "{file}:loss"\n',
    "an advantage": GRIDWORLD + '[algo]\nadvantage = "{file}:advantage"\n',
    "a curriculum": GRIDWORLD + '[curriculum]\nname = "{file}:Curriculum"\n',
    "a reward": '[data]\ntrain = "{rows}"\nprompt = "q"\nreward = "{file}:reward"\n',
}
IMPORTED = ("an environment", "a module of a folder", "a curriculum")


@pytest.mark.parametrize("naming", NAMING)
def test_what_a_recipe_names_runs_unless_it_is_told_not_to(tmp_path, capsys, naming):
    mark, file, rows = tmp_path / "it_ran", tmp_path / "stranger.py", tmp_path / "rows.jsonl"
    file.write_text(CODE.format(mark=str(mark)))
    rows.write_text('{"q": "1 + 1"}\n')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('base = "tiny_cpu"\n' + NAMING[naming].format(file=file, folder=tmp_path, rows=rows))
    assert main(["config", str(recipe), "--no-code"]) == 0
    assert not mark.exists()
    assert json.loads(capsys.readouterr().out)
    # Objectives and rewards are only looked for in their files.
    assert main(["config", str(recipe)]) == (2 if naming in IMPORTED else 0)
    assert mark.exists() == (naming in IMPORTED)
