"""The notebook reads a run's folder: its cells run in order, as Jupyter would run them."""

import json

import matplotlib
import pytest

from tests.docs.blocks import ROOT
from tests.run.folders import add_activity, make_run

NOTEBOOK = json.loads((ROOT / "docs" / "run.ipynb").read_text())


def test_the_notebook_shows_what_the_run_has(tmp_path, monkeypatch, capsys):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    add_activity(make_run(tmp_path / "runs" / "first"))
    names: dict = {}
    for number, cell in enumerate(NOTEBOOK["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["steps"]["reward/mean"].tolist() == [0.1, 0.2, 0.3]
    assert names["held_out"]["mean"].tolist() == [0.5]
    assert len(names["trajectories"]) == 24
    assert names["rewards"]["gridworld"].tolist() == pytest.approx([0.625] * 3)
    assert "assistant: I go NORTH move({" in capsys.readouterr().out


def test_the_notebook_is_kept_without_results():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
