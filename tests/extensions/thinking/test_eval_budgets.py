"""`asyncrl eval` under several budgets of thinking: an evaluation each, and one page."""

import argparse
import json

import pytest

from asyncrl.cli import main
from asyncrl.commands import eval as command
from asyncrl.errors import ConfigError


@pytest.mark.slow
def test_each_budget_is_evaluated_in_its_folder_and_all_are_one_curve(thinker, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{n} + 1 = ?", "answer": f"#### {n + 1}"} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["eval", thinker, "--on", "gsm8k=sums.jsonl", "--max-tokens", "48", "--most-thinking", "4,24"]
    settings = ["--price", "0.5,2", "run.threads=1", "engine.max_num_seqs=8"]
    assert main([*command, *settings]) == 0
    folder = tmp_path / "evals" / "gsm8k"
    assert f"page: {folder.relative_to(tmp_path) / 'leaderboard.html'}" in capsys.readouterr().out
    (curve,) = json.loads((folder / "leaderboard.json").read_text())["budgets"]
    assert (curve["checkpoint"], curve["on"]) == (thinker, "gsm8k")
    for point, most in zip(curve["points"], (4, 24), strict=True):
        part = folder / f"thinking-at-most-{most}"
        samples = [json.loads(line) for line in (part / "samples.jsonl").read_text().splitlines()]
        assert [point["most_thinking"], len(samples)] == [most, 4]
        tokens = sum(one["tokens"] for one in samples) / 4
        read = sum(one["read_tokens"] for one in samples) / 4
        assert point["tokens"] == tokens and read > 0
        assert point["cost"] == pytest.approx((0.5 * read + 2 * tokens) / 1e6)
        # The model says nothing that is right, and seldom ends before its limit.
        assert point["success"]["mean"] == sum(one["reward"] for one in samples) / 4
        result = json.loads((part / "results.json").read_text())
        assert result["checkpoints"][thinker]["score"] == point["success"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--most-thinking", "128,128"], "--most-thinking: has a number twice"),
        (["--most-thinking", "128,-1"], "--most-thinking: must be at least 0, got -1"),
        (["--most-thinking", "128", "--price", "1,2"], "--price goes with several budgets"),
        (["--most-thinking", "128,256", "--price", "1"], "--price: must be READ,SAMPLED"),
        # The second budget is refused before the first is played.
        (["--most-thinking", "4,48", "--max-tokens", "48"], "eval.most_thinking: must be below"),
    ],
)
def test_budgets_that_cannot_be_are_refused_before_anything_is_played(
    thinker, tmp_path, monkeypatch, given, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text(json.dumps({"question": "1 + 1 = ?", "answer": "#### 2"}) + "\n")
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    args = parser.parse_args(["eval", thinker, "--on", "gsm8k=sums.jsonl", *given])
    with pytest.raises(ConfigError, match=message):
        command.run(args)
    assert not (tmp_path / "evals").exists()
