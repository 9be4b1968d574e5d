"""Real agent programs, in the versions that their files name, play the episodes of `asyncrl env check agent`."""

import os

import pytest

from asyncrl.cli import main
from asyncrl.errors import UnavailableError
from asyncrl.extensions.agents.harness.file import packaged, read_harness
from asyncrl.extensions.agents.harness.program import install
from asyncrl.extensions.agents.program_check import check_agent_program
from tests.shared import made_once

WHOLE = os.environ.get("ASYNCRL_TEST_PROGRAMS") == "all"
"""Whether the programs play all scenarios, which takes an hour; otherwise they play the repair."""
PROGRAMS = [name for name in packaged() if name != "bash"]
INSTALL_S = 1800.0 if WHOLE else 400.0
"""Of one program; one that takes longer is left out."""


def check(name, whole):
    findings = check_agent_program({"harness": name}, repair_only=not whole)
    assert len(findings) == (5 if whole else 1), findings
    assert not [finding for finding in findings if not finding.ok], findings


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_plain_loop_passes_the_whole_check():
    check("bash", True)


@pytest.mark.slow
@pytest.mark.timeout(5400 if WHOLE else 900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_a_registry_passes_the_check(name, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(made_once("harnesses", lambda folder: None)))
    monkeypatch.setattr("asyncrl.extensions.agents.harness.program.INSTALL_S", INSTALL_S)
    try:
        install(name, read_harness(name))
    except UnavailableError as error:
        pytest.skip(f"not installed here: {str(error)[:300]}")
    check(name, WHOLE)


LISTS = """import json, os, sys, urllib.request
question = {"role": "user", "content": sys.argv[1] + " Answer with a file listing."}
while True:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": [question]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    try:
        answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
        break
    except urllib.error.HTTPError as error:
        assert error.code == 502
open("calc.py", "w").write(answer.partition("python")[2].strip().strip("`"))
"""


def test_the_check_says_which_faults_a_program_without_tools_cannot_meet(tmp_path):
    (tmp_path / "lists.py").write_text(LISTS)
    own = tmp_path / "own.toml"
    own.write_text(
        'program = { path = "lists.py" }\ncommand = ["python3", "{program}", "{prompt}"]\nprompt = "{prompt}"\n'
    )
    findings = check_agent_program({"harness": str(own)}, slow_s=0.1)
    assert [finding.ok for finding in findings] == [True] * 5, findings
    unmet = [finding.seen.rpartition("; ")[2] for finding in findings[3:]]
    assert unmet == ["it has no tool that shows a picture", "it has no tool that fills its context"]
    assert "waits for a turn of 0.1 s" in [finding.name for finding in findings]


def test_a_program_that_does_nothing_fails_the_check_with_what_it_said(tmp_path, capsys):
    own = tmp_path / "own.toml"
    own.write_text('command = ["sh", "-c", "echo I know no $0 >&2; exit 4", "{prompt}"]\nprompt = "model"\n')
    assert main(["env", "check", "agent", "--config", f'{{harness = "{own}"}}']) == 1
    shown = capsys.readouterr().out
    assert "FAILED  repairs a repository" in shown and "I know no model" in shown


def test_the_check_of_an_agent_needs_a_harness_and_alone_has_a_slow_turn(capsys):
    assert main(["env", "check", "agent", "--slow-turn-s", "400"]) == 2
    assert "give a harness" in capsys.readouterr().err
    assert main(["env", "check", "gridworld", "--slow-turn-s", "400"]) == 2
    assert "--slow-turn-s is for the check of an agent program" in capsys.readouterr().err
