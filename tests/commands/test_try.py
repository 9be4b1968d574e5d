"""`asyncrl try` plays a few rows on a real engine, shows them, trains nothing and leaves nothing."""

import json

import pytest

from asyncrl.cli import main

RECIPE = """
base = "tiny_cpu"
[data]
train = "sums.jsonl"
heldout_share = 0.2
reward = "exact"
[rollout]
max_tokens_per_turn = 4
[sft]
steps = 2
episodes = 40
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{a} + {b} =", "answer": a + b} for a in range(5) for b in range(5)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.toml").write_text(RECIPE)


@pytest.mark.slow
def test_a_few_rows_are_played_and_shown_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    assert main(["try", "r.toml", "--rows", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("right answer:") == 2
    assert shown.out.count("  reward:") == 2
    assert shown.out.splitlines()[-1].startswith("2 samples of 2 tasks: mean reward ")
    assert "data: " in shown.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "0"], "try: --rows must be at least 1, got 0"),
        (["--samples", "0"], "try: --samples must be at least 1, got 0"),
        (["data.reward=nope"], "data.reward: unknown reward 'nope'"),
        (["data.prompt={q}"], "has no column 'q'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(capsys, words, message):
    assert main(["try", "r.toml", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_packaged_model_is_taken_from_the_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert main(["try", "r.toml", "model.path=smollm2-135m"]) == 2
    assert f"model.path: '{folder}' has no weights" in capsys.readouterr().err
