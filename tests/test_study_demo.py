"""The study of the demo: which seeds are still to be run, and what is said of those that have ended."""

import json

import pytest

from tests.scripts import load_script


@pytest.fixture
def study(monkeypatch):
    return load_script("studies/study_demo")


def test_a_study_that_was_cut_goes_on_with_the_seeds_that_have_not_ended(
    study, monkeypatch, tmp_path, capsys
):
    records = tmp_path / "demo.jsonl"
    earlier = [
        {"seed": 0, "busy": False, "after": 0.99},
        {"seed": 1, "busy": True, "error": "vLLM did not answer"},
    ]
    records.write_text("".join(json.dumps(record) + "\n" for record in earlier))
    played = []

    def run_once(recipe, seed, busy, overrides):
        played.append((recipe, seed, busy, overrides))
        return {"seed": seed, "busy": busy, "after": 0.9}

    monkeypatch.setattr(study, "run_once", run_once)
    argv = ["study_demo", "--records", str(records), "--runs", "4", "--limit", "2", "train.num_steps=3"]
    monkeypatch.setattr("sys.argv", argv)
    study.main()
    assert played == [("gridworld_grpo", seed, bool(seed % 2), ["train.num_steps=3"]) for seed in (1, 2)]
    said = capsys.readouterr().out
    report = json.loads(said[said.index("{\n") :])
    assert report == {
        "after": {"0": 0.99, "1": 0.9, "2": 0.9},
        "busy": [1],
        "lowest": 0.9,
        "reached": 1,
        "runs": 3,
        "failed": [],
    }
