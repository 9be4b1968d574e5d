"""Tasks of lm-eval: what becomes of its samples, and lm-eval itself against a checkpoint that asyncrl serves."""

import json

import pytest

from asyncrl.cli import main
from asyncrl.extensions.benchmarks.results import evaluate_samples
from asyncrl.extensions.other_evaluators import lm_eval
from tests.benchmark_env import benchmark_python
from tests.services.engine.benchmark_clients import CHOOSE, GOALS, WRITE


def sample(doc, task="gsm8k", kind="strict-match", **more):
    filtered = more.pop("filtered", "18")
    return {
        "task": task,
        "fewshot": 5,
        "doc": doc,
        "hash": "h",
        "filter": kind,
        "prompt": "Question: ...\nAnswer:",
        "target": "18",
        "responses": [" 6 + 12 = 18\n#### 18"],
        "filtered": [filtered],
        "metrics": more,
    }


def test_the_first_filter_is_the_verdict_and_all_are_components():
    said = [
        sample(0, exact_match=0.0, filtered="[invalid]"),
        sample(0, kind="flexible-extract", exact_match=1.0),
        sample(1, exact_match=1.0),
        sample(1, kind="flexible-extract", exact_match=1.0),
    ]
    first, second = lm_eval.rows(said, "model")
    assert (first["id"], first["task"]) == ("model:lm-eval/gsm8k-0:0", "lm-eval/gsm8k-0")
    assert (first["success"], first["reward"], first["extracted"]) == (False, 0.0, "[invalid]")
    assert first["components"] == {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    assert (second["success"], second["extracted"]) == (True, "18")
    assert second["messages"][1]["content"] == " 6 + 12 = 18\n#### 18"
    found = evaluate_samples([first, second], ["model"], 1)
    assert found["checkpoints"]["model"]["parts"]["lm-eval/gsm8k"]["score"]["mean"] == 0.5


def test_choices_are_judged_by_acc_and_other_metrics_are_rewards_without_a_verdict():
    (chosen,) = lm_eval.rows([sample(0, task="arc", kind="none", acc=1.0, acc_norm=0.0)], "m")
    assert (chosen["success"], chosen["reward"]) == (True, 1.0)
    (scored,) = lm_eval.rows([sample(0, task="sum", kind="none", rouge1=0.4)], "m")
    assert (scored["success"], scored["reward"]) == (None, 0.4)


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_by_lm_eval_itself_and_reported(
    tiny_model, tmp_path, monkeypatch, capsys, pytestconfig
):
    python = benchmark_python(pytestconfig.cache.mkdir("benchmark-clients"))
    monkeypatch.setattr("asyncrl.extensions.other_evaluators.lm_eval_command.lm_eval_python", lambda: python)
    monkeypatch.chdir(tmp_path)
    rows, tasks = tmp_path / "goals.jsonl", tmp_path / "mine"
    rows.write_text("".join(json.dumps(row) + "\n" for row in GOALS))
    tasks.mkdir()
    (tasks / "choose.yaml").write_text(CHOOSE.replace("FILE", str(tmp_path / "elsewhere.jsonl")))
    command = ["eval", tiny_model, "--on", f"lm-eval/choose={rows}", "--include", str(tasks), "--limit", "8"]
    settings = ["run.threads=1", "engine.max_num_seqs=8"]
    assert main([*command, *settings]) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "evals" / "lm-eval-choose"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [one["task"] for one in samples] == [f"lm-eval/choose-{n}" for n in range(8)]
    right = sum(one["components"]["acc,none"] for one in samples) / 8
    result = json.loads((folder / "results.json").read_text())
    assert result["checkpoints"][tiny_model]["score"]["mean"] == pytest.approx(right)
    assert result["complete"] and f"score {right:.3f}" in said
    # The same command evaluates nothing again.
    monkeypatch.setattr(
        "asyncrl.extensions.other_evaluators.lm_eval_command.play", lambda *_: pytest.fail("played again")
    )
    assert main([*command, *settings]) == 0
    assert main(["leaderboard", "evals"]) == 0
    assert f"lm-eval/choose {right:.3f}" in capsys.readouterr().out


@pytest.mark.slow
def test_examples_and_the_chat_template_are_put_around_a_question_as_asked_for(
    tiny_model, tmp_path, monkeypatch, pytestconfig
):
    python = benchmark_python(pytestconfig.cache.mkdir("benchmark-clients"))
    monkeypatch.setattr("asyncrl.extensions.other_evaluators.lm_eval_command.lm_eval_python", lambda: python)
    monkeypatch.chdir(tmp_path)
    rows, examples, tasks = tmp_path / "goals.jsonl", tmp_path / "examples.jsonl", tmp_path / "mine"
    rows.write_text("".join(json.dumps(row) + "\n" for row in GOALS))
    shown = [{"goal": "goal up", "answer": "sky"}, {"goal": "goal down", "answer": "earth"}]
    examples.write_text("".join(json.dumps(row) + "\n" for row in shown))
    tasks.mkdir()
    (tasks / "write.yaml").write_text(WRITE.replace("FILE", str(rows)))
    command = ["eval", tiny_model, "--on", f"lm-eval/write={rows}", "--include", str(tasks), "--limit", "2"]
    settings = ["run.threads=1", "engine.max_num_seqs=8"]

    def prompts(name, *options):
        assert main([*command, "--out", name, *options, *settings]) == 0
        lines = (tmp_path / name / "samples.jsonl").read_text().splitlines()
        return [json.loads(line)["messages"][0]["content"] for line in lines]

    few = prompts("few", "--fewshot", "2", "--examples", str(examples))
    assert [one.endswith(f"\n\n{row['goal']}") for one, row in zip(few, GOALS, strict=False)] == [True] * 2
    assert all("goal up sky" in one and "goal down earth" in one for one in few)
    chat = prompts("chat", "--fewshot", "0", "--chat")
    assert chat == [
        f"<|im_start|>user\n{row['goal']}<|im_end|>\n<|im_start|>assistant\n" for row in GOALS[:2]
    ]
