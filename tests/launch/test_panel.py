"""A run is drawn on terminals, and told in lines elsewhere."""

import io

import pytest

from asyncrl.launch.reports.panel import RunPanel, curve, draws_panels, plain_lines, steps_shown
from asyncrl.run.observe import RunObserver
from tests.run.folders import add_activity, add_step, make_run


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_panel_shows_steps_buffer_processes_and_why_an_engine_waits(tmp_path):
    run = make_run(tmp_path / "first", steps=3)
    add_activity(run)
    (run / "restarts.jsonl").write_text('{"name": "engine-0"}\n{"name": "engine-0"}\n')
    heading, reward, staleness, seconds, buffer, _, *processes = plain_lines(RunPanel(run)).splitlines()
    assert heading.split() == ["first", "running", "step", "3/10", "7", "s", "left"]
    assert reward.split() == ["reward", "0.300", "▁▅█", "success", "0.300"]
    assert staleness.split() == ["staleness", "0.50", "max", "1", "tokens/s", "300"]
    assert seconds.split() == ["seconds", "wait", "0.50", "train", "0.25", "publish", "0.12"]
    assert buffer.split()[:5] == ["buffer", "4", "of", "8", "slots"]
    assert buffer.split()[-7:] == ["in", "flight", "1", "ready", "2", "taken", "1"]
    trainer, engine, env = (line.split() for line in processes)
    assert trainer == ["trainer", "41", "0.50", "1.00", "GiB"]
    assert engine[:6] == ["engine-0", "42", "1.25", "3.00", "GiB", "2"]
    assert " ".join(engine[6:]) == (
        "version 3, 0 running, 0 waiting, KV 25%, idle: episodes wait for their environments"
    )
    assert env == ["env", "0.00", "not", "running"]


def test_a_panel_follows_its_run_and_shows_further_policies(tmp_path):
    run = make_run(tmp_path / "first", steps=0)
    panel = RunPanel(run)
    assert "no step has been trained yet" in plain_lines(panel)
    assert "what the processes do has not been recorded yet" in plain_lines(panel)
    add_step(run, 1)
    make_run(run / "policies" / "critic", steps=2)
    assert "reward    0.100" in plain_lines(panel)
    assert "policy critic" in plain_lines(panel)


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([0.5, 0.5], "▁▁"), ([0.0, 1.0, 0.5], "▁█▅"), ([-1.0, -3.0], "█▁")]
)
def test_a_curve_goes_from_the_least_to_the_greatest_value(values, bars):
    assert curve(values) == bars


@pytest.mark.parametrize(
    ("stream", "variables", "draws"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_a_panel_is_for_terminals_whose_user_wants_colour(monkeypatch, stream, variables, draws):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert draws_panels(stream) is draws


def test_a_run_that_trains_on_a_terminal_has_a_panel_below_what_is_printed(tmp_path, monkeypatch):
    run, terminal = make_run(tmp_path / "first", steps=0), Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr", terminal)
    with steps_shown(run, 10, RunObserver(run)) as show:
        import sys

        print("not learning: [bold]why[/]", file=sys.stderr)
        add_step(run, 1, **{"reward/mean": 0.625})
        show(1, {})
    written = terminal.getvalue()
    assert "not learning: [bold]why[/]" in written
    assert "0.625" in written
    assert "\x1b[" in written


def test_a_run_that_trains_into_a_log_has_a_line_for_each_step(tmp_path, capsys):
    run = make_run(tmp_path / "first", steps=0)
    with steps_shown(run, 10, RunObserver(run)) as show:
        show(3, {"reward/mean": 0.5})
    assert capsys.readouterr().err.startswith("step 3/10  reward 0.500  staleness")
