"""`asyncrl doctor RUN` from the command line."""

from asyncrl.cli import main
from tests.run.folders import add_step, make_run


def test_the_doctor_says_what_is_wrong_with_a_run(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path / "runs" / "one", steps=0)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "runs/one"]) == 0
    assert "no step has been recorded yet" in capsys.readouterr().out
    for step in range(1, 8):
        add_step(run, step, **{"ess/sequence": 0.1})
    assert main(["doctor", "runs/one"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("one: running, step 7 of 10\n  not learning: the effective sample size is 0.10")
    assert "    -> lower train.learning_rate" in said


def test_the_doctor_of_a_folder_of_runs_names_them(tmp_path, capsys):
    make_run(tmp_path / "runs" / "one")
    assert main(["doctor", str(tmp_path / "runs")]) == 2
    assert "give one of its runs: one" in capsys.readouterr().err
