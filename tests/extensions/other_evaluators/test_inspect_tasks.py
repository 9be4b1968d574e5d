"""Tasks of inspect-ai: what becomes of its samples, and inspect-ai itself against a checkpoint that asyncrl serves."""

import json
import os
import re
import subprocess

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.results import evaluate_samples
from asyncrl.extensions.other_evaluators import inspect_tasks
from tests.benchmark_env import benchmark_python
from tests.docs.blocks import blocks

TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, includes, mean, scorer
from inspect_ai.solver import generate, solver


@scorer(metrics=[mean()])
def letters():
    async def score(state, target):
        return Score(value=len(state.output.completion) / 100)

    return score


@solver
def breaks():
    async def solve(state, generate):
        raise ValueError("broken solver")

    return solve


ROWS = [Sample(id=f"g{n}", input=f"goal {n}", target=letter) for n, letter in enumerate("oeaoeaoea")]


@task
def vowels():
    return Task(dataset=ROWS, solver=generate(), scorer=[includes(), letters()])


@task
def broken():
    return Task(dataset=ROWS[:2], solver=breaks(), scorer=includes())
"""


def line(name, epoch=1, task="inspect/t.py@t", **more):
    return {
        "task": task, "id": name, "epoch": epoch, "hash": "h", "reward": 1.0, "verdict": True,
        "components": {"includes": 1.0, "letters": 0.4}, "answer": "o", "error": "", "limit": "", "turns": 1,
        "tokens": 5, "read_tokens": 9, "wall_s": 0.5, "messages": [{"role": "user", "content": "?"}],
    } | more  # fmt: skip


def test_a_sample_is_judged_by_the_first_scorer_and_epochs_are_samples():
    said = [line("a"), line("a", 2, reward=0.5), line("b", reward=0.0), line("b", 2, reward=1.0)]
    found = list(inspect_tasks.rows(said, "m"))
    assert [one["id"] for one in found] == [f"m:inspect/t.py@t-{n}:{s}" for n in "ab" for s in (0, 1)]
    # Half right is not right.
    assert [(one["reward"], one["success"]) for one in found] == [
        (1.0, True),
        (0.5, False),
        (0.0, False),
        (1.0, True),
    ]
    assert found[0]["components"] == {"includes": 1.0, "letters": 0.4}
    assert (found[0]["tokens"], found[0]["read_tokens"], found[0]["extracted"]) == (5, 9, "o")
    (one,) = evaluate_samples(found, ["m"], 2)["checkpoints"].values()
    assert (one["score"]["mean"], one["pass_at"]["2"]["mean"]) == (0.5, 1.0)


def test_scores_that_are_no_share_of_right_answers_are_rewards_without_a_verdict():
    (found,) = inspect_tasks.rows([line("a", verdict=False, reward=0.4)], "m")
    assert (found["reward"], found["success"], found["failure"]) == (0.4, None, None)


def test_a_sample_that_raised_is_a_failure_and_enters_no_rate():
    said = [
        line("a"),
        line("b", error="ValueError: x", reward=None),
        line("c", reward=None),
        line("d", limit="time"),
    ]
    found = list(inspect_tasks.rows(said, "m"))
    assert [one["status"] for one in found] == ["finished", "failed", "failed", "truncated"]
    assert [one["failure"] for one in found] == [None, "environment", "environment", None]
    assert [one["error"] for one in found] == ["", "ValueError: x", "no scorer has scored it", "time"]
    (one,) = evaluate_samples(found, ["m"], 1)["checkpoints"].values()
    assert (one["score"]["mean"], one["counted"]) == (1.0, 2)


def test_a_task_is_a_file_or_one_of_inspect_evals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    assert inspect_tasks.task_spec("inspect/gpqa_diamond") == "inspect_evals/gpqa_diamond"
    assert inspect_tasks.task_spec("inspect/mine.py@one") == f"{tmp_path}/mine.py@one"
    assert inspect_tasks.task_spec("inspect/mine.py") == f"{tmp_path}/mine.py"
    with pytest.raises(ConfigError, match=r"--on inspect/none\.py@one: there is no file 'none\.py'"):
        inspect_tasks.task_spec("inspect/none.py@one")
    own = inspect_tasks.Asked({"inspect/mine.py": f"{tmp_path}/mine.py"})
    assert own.own and not inspect_tasks.Asked({**own.tasks, "inspect/x": "inspect_evals/x"}).own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("mine.py@none", r"mine\.py@none: .*none"),
        ("mine.py", r"mine\.py: has 2 tasks \(broken, vowels\); give one"),
    ],
)
def test_a_task_that_there_is_not_is_told_by_name(tmp_path, pytestconfig, asked, said):
    python = benchmark_python(pytestconfig.cache.mkdir("inspect"), inspect_tasks.PACKAGES)
    (tmp_path / "mine.py").write_text(TASKS)
    request = {
        "url": "http://127.0.0.1:9", "at_once": 1, "tasks": {f"inspect/{asked}": f"{tmp_path}/{asked}"},
        "limit": None, "samples": 1, "max_tokens": None, "temperature": None,
    }  # fmt: skip
    (tmp_path / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [python, "-P", str(inspect_tasks.MAIN), str(tmp_path / "request.json"), str(tmp_path / "out.jsonl")],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": "x"},
    )
    assert done.returncode == 1
    assert re.search(said, done.stderr)


@pytest.mark.slow
def test_the_task_file_of_the_page_is_played_as_it_stands_there(
    tiny_model, tmp_path, monkeypatch, pytestconfig
):
    python = benchmark_python(pytestconfig.cache.mkdir("inspect"), inspect_tasks.PACKAGES)
    monkeypatch.setattr(
        "asyncrl.extensions.other_evaluators.inspect_command.inspect_python", lambda asked: python
    )
    monkeypatch.chdir(tmp_path)
    [text] = [one.text for one in blocks("docs/evaluation.md") if one.text.startswith("from inspect_ai")]
    (tmp_path / "sums.py").write_text(text)
    command = ["eval", tiny_model, "--on", "inspect/sums.py", "--samples", "2", "--max-tokens", "8"]
    assert main([*command, "run.threads=1", "engine.max_num_seqs=8"]) == 0
    played = (tmp_path / "evals" / "inspect-sums.py" / "samples.jsonl").read_text().splitlines()
    first = [json.loads(line)["messages"][0]["content"] for line in played]
    assert sorted(first) == sorted([f"{n} + {n} =" for n in range(1, 9)] * 2)


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_by_inspect_itself_and_reported(
    tiny_model, tmp_path, monkeypatch, capsys, pytestconfig
):
    python = benchmark_python(pytestconfig.cache.mkdir("inspect"), inspect_tasks.PACKAGES)
    monkeypatch.setattr(
        "asyncrl.extensions.other_evaluators.inspect_command.inspect_python", lambda asked: python
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TASKS)
    command = ["eval", tiny_model, "--on", "inspect/mine.py@vowels,inspect/mine.py@broken", "--limit", "6"]
    command += ["--samples", "2", "--max-tokens", "12", "--temperature", "1"]
    settings = ["run.threads=1", "engine.max_num_seqs=8"]
    assert main([*command, *settings]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "evals" / "inspect-mine.py@vowels_inspect-mine.py@broken"
    samples = [json.loads(text) for text in (folder / "samples.jsonl").read_text().splitlines()]
    vowels = [one for one in samples if one["part"] == "inspect/mine.py@vowels"]
    assert sorted((one["task"], one["sample"]) for one in vowels) == [
        (f"inspect/mine.py@vowels-g{n}", sample) for n in range(6) for sample in (0, 1)
    ]
    for one in vowels:
        answer, wanted = one["messages"][-1]["content"], "oea"[int(one["task"][-1]) % 3]
        # Inspect's scorer does not look at case.
        assert one["success"] == (wanted in answer.lower())
        assert one["components"]["letters"] == pytest.approx(len(answer) / 100)
        assert 0 < one["tokens"] <= 12 and one["read_tokens"] > 0
    broken = [one for one in samples if one["part"] == "inspect/mine.py@broken"]
    assert {(one["failure"], one["error"]) for one in broken} == {
        ("environment", "ValueError('broken solver')")
    }
    assert len(broken) == 4
    right = sum(one["success"] for one in vowels) / 12
    result = json.loads((folder / "results.json").read_text())
    assert result["checkpoints"][tiny_model]["score"]["mean"] == pytest.approx(right)
    assert result["complete"] and f"score {right:.3f}" in said
    # The same command evaluates nothing again; another task file is another evaluation.
    monkeypatch.setattr(
        "asyncrl.extensions.other_evaluators.inspect_command.play", lambda *_: pytest.fail("played again")
    )
    assert main([*command, *settings]) == 0
    assert main(["leaderboard", "evals"]) == 0
    assert f"inspect/mine.py@vowels {right:.3f}" in capsys.readouterr().out
    (tmp_path / "mine.py").write_text(TASKS + "# changed\n")
    assert main([*command, *settings]) == 2
