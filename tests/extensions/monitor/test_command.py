"""`asyncrl monitor` from the command line."""

import re
import signal
import subprocess
import sys

import httpx
import pytest

from asyncrl.cli import main
from tests.run.folders import make_run
from tests.waiting import wait_for_url


@pytest.mark.slow
def test_the_printed_link_opens_what_the_run_has(tmp_path):
    make_run(tmp_path / "runs" / "one")
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "asyncrl", "monitor", "--port", "0", "--ready-file", str(ready)]
    server = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        url = wait_for_url(ready, lambda: server.poll() is None)
        assert server.stderr is not None
        link = re.fullmatch(r"runs: open (http\S+)/#token=(\S+)\n", server.stderr.readline())
        assert link is not None and link[1] == url
        answer = httpx.get(f"{url}/api/runs", headers={"Authorization": f"Bearer {link[2]}"})
        assert [run["name"] for run in answer.json()["runs"]] == ["one"]
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
def test_runs_are_exported_into_one_file(tmp_path, capsys):
    make_run(tmp_path / "runs" / "one")
    assert main(["monitor", str(tmp_path / "runs"), "--export", str(tmp_path / "runs.html")]) == 0
    assert "1 run, " in capsys.readouterr().err
    assert "ASYNCRL_EXPORT" in (tmp_path / "runs.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "empty: holds no run"),
        (["runs", "--token-file", "nowhere"], "--token-file nowhere: cannot be read"),
        (
            ["runs", "--token-file", "runs/one/config.json"],
            "--token-file runs/one/config.json: must be a run's token",
        ),
        (["runs", "--export", "nowhere/file.html"], "--export nowhere/file.html: cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path, capsys, monkeypatch, arguments, message):
    make_run(tmp_path / "runs" / "one")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["monitor", *arguments]) == 2
    assert message in capsys.readouterr().err
