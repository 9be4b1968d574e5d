"""`asyncrl top` from the command line."""

import os
import pty
import subprocess
import sys
import threading

import pytest

from asyncrl.cli import main
from tests.run.folders import add_activity, add_step, long_ago, make_run
from tests.waiting import running, wait_until


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs, of which a was stopped and now goes on."""
    long_ago(make_run(tmp_path / "runs" / "a"))
    make_run(tmp_path / "runs" / "now")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["top", "runs"], "top runs: has no config.json"),
        (["top", "runs/a", "--every", "0"], "--every 0: must be from 0.1 to 3600 seconds"),
    ],
)
def test_what_cannot_be_done_is_said(runs, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_top_prints_plain_lines_where_there_is_no_terminal(runs, capsys):
    add_activity(runs / "a")
    long_ago(runs / "a")
    assert main(["top", "runs/a"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("a  stopped  step 3/10\n")
    assert "\x1b" not in said
    assert "engine-0   42   1.25  3.00 GiB" in said


@pytest.mark.slow
def test_top_redraws_a_terminal_until_the_run_ends(runs):
    run = runs / "now"
    add_activity(run)
    end, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    command = [sys.executable, "-m", "asyncrl", "top", "runs/now", "--every", "0.1"]
    process = subprocess.Popen(command, stdout=terminal, cwd=runs.parent, env=environment)
    os.close(terminal)
    seen = bytearray()

    def read():
        try:
            while piece := os.read(end, 4096):
                seen.extend(piece)
        except OSError:
            return  # the other end is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: b"step 3/10" in seen, running(process))
        add_step(run, 4, **{"reward/mean": 0.875})
        wait_until(lambda: b"0.875" in seen, running(process))
        long_ago(run)
        assert process.wait(60) == 0
        reader.join(30)
    finally:
        process.kill()
        process.wait()
        os.close(end)
    assert b"stopped" in seen
    assert b"\x1b[1;32mrunning" in seen
