"""A suite of whose parts an agent program plays one: both come into one report, and nothing is played twice."""

import json
from pathlib import Path

import pytest

from asyncrl.cli import main

PROGRAM = """import json, os, sys, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": "go"}], "max_tokens": 4}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
json.load(urllib.request.urlopen(request))
sys.exit(3)
"""
SUITE = """
version = 1
samples = 2
max_tokens_per_turn = 8
max_model_len = 256
[parts.walk]
env = "gridworld"
tasks = 2
config = { max_turns = 2 }
[parts.mend]
harness = "own.toml"
env = "repair"
tasks = 2
tags = ["agents"]
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('"own.toml"', '"bush"'),
            "parts.mend: env.config.harness: unknown harness 'bush'; did you mean 'bash'",
        ),
        (('"repair"', '"countdown"'), "parts.mend: env.config.tasks: 'countdown' gives no folder to work in"),
    ],
)
def test_a_program_that_is_not_there_and_tasks_without_a_folder_are_refused(
    tmp_path, tiny_model, monkeypatch, capsys, change, message
):
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('command = ["true", "{prompt}"]\n')
    Path("small.toml").write_text(SUITE.replace(*change))
    assert main(["eval", str(tiny_model), "--suite", "small.toml"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("evals").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_program_and_environments_are_played_in_one_evaluation(tmp_path, tiny_model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ask.py").write_text(PROGRAM)
    Path("own.toml").write_text(
        'program = { path = "ask.py" }\ncommand = ["python3", "{program}", "{prompt}"]\n'
    )
    Path("small.toml").write_text(SUITE)
    command = ["eval", str(tiny_model), "--suite", "small.toml", "--out", "out", "run.threads=1"]
    assert main(command) == 0
    rows = [json.loads(line) for line in Path("out", "samples.jsonl").read_text().splitlines()]
    assert sorted((row["part"], row["sample"]) for row in rows) == [
        (part, sample) for part in ("mend", "walk") for sample in (0, 0, 1, 1)
    ]
    mended = [row for row in rows if row["part"] == "mend"]
    assert {(row["env"], row["harness"], row["failure"]) for row in mended} == {
        ("repair", str(Path("own.toml").absolute()), None)
    }
    assert [row["components"]["exit_code"] for row in mended] == [3.0] * 4
    result = json.loads(Path("out", "results.json").read_text())
    assert result["complete"] and "agents" in Path("out", "report.md").read_text()
    before = Path("out", "samples.jsonl").read_bytes()
    assert main(command) == 0, "nothing is missing, so that nothing is started"
    assert Path("out", "samples.jsonl").read_bytes() == before
