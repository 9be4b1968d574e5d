"""What Prometheus and the monitor are told of a server."""

import json

import pytest

from asyncrl.extensions.monitor.service import monitor_app
from asyncrl.extensions.tinker import progress as module
from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.progress import Progress, exposition, ranks_before
from asyncrl.extensions.tinker.sampling import Sampling
from asyncrl.extensions.tinker.server import Server
from asyncrl.extensions.tinker.tables import OPTIM_STEP, PolicyRecord, Request
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.waiting import Answers
from asyncrl.run.runs import find_runs, run_line
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, RUN


@pytest.fixture
def server(tmp_path):
    """A server that loads no model: nothing is carried out."""
    folder = tmp_path / "tinker"
    ledger, answers = Ledger(folder), Answers()
    for session, client in (("s", "alice"), ("t", "")):
        ledger.add_session(session, {}, client)
        ledger.add_policy(PolicyRecord(f"{session}:train:0", session, {}, 0, 1.0, 1.0, None, client=client))
    ledger.use("alice", steps=2, trained=30)
    ledger.use("", steps=1, trained=5, sampled=7)
    training = Training(None, Checkpoints(folder, ledger), answers, "tiny", 8, 2)
    for number in (1, 2):
        training.submit(Request("s:train:0", number, OPTIM_STEP, b"{}"))
    yield Server(training, Sampling(ledger, answers, 16), answers, "")
    ledger.close()


def test_prometheus_reads_the_state_and_each_clients_counts(server):
    lines = exposition(server).decode().splitlines()
    for line in (
        "asyncrl_tinker_sessions 2.0",
        "asyncrl_tinker_policies 2.0",
        "asyncrl_tinker_policies_in_memory 0.0",
        "asyncrl_tinker_training_requests_waiting 2.0",
        "asyncrl_tinker_sampling_requests_waiting 0.0",
        "asyncrl_tinker_engine_serves 0.0",
        'asyncrl_tinker_steps_total{client="alice"} 2.0',
        'asyncrl_tinker_tokens_trained_total{client=""} 5.0',
        'asyncrl_tinker_tokens_sampled_total{client=""} 7.0',
    ):
        assert line in lines


def test_the_monitor_shows_the_folder_as_a_run(server, tmp_path):
    Progress(server, tmp_path / "tinker", "tiny").write()
    assert find_runs(tmp_path) == {"tinker": tmp_path / "tinker"}
    line = run_line("tinker", tmp_path / "tinker")
    assert (line.state, line.step, line.environment) == ("running", 3, "tinker")
    (tmp_path / "app").mkdir()
    app = AppThread(monitor_app(tmp_path, RUN.access("monitor")), tmp_path / "app")
    try:
        import httpx

        def get(path, **params):
            return httpx.get(f"{app.url}{path}", params=params, headers=AUTHORIZED)

        (row,) = get("/api/runs").json()["runs"]
        assert (row["name"], row["state"], row["step"]) == ("tinker", "running", 3)
        assert "client/alice/tokens_trained" in get("/api/run", name="tinker").json()["metrics"]
        keys = "tinker/policies,tinker/tokens_sampled,client/alice/steps"
        assert get("/api/steps", name="tinker", keys=keys).json() == {
            "step": [3], "tinker/policies": [2], "tinker/tokens_sampled": [7], "client/alice/steps": [2],
        }  # fmt: skip
        metric = 'asyncrl_step_metric{metric="tinker/tokens_trained",run="tinker"} 35.0'
        assert metric in get("/metrics").text
        for path in ("/api/timeline", "/api/episodes"):
            assert get(path, name="tinker").status_code == 200
    finally:
        app.close()


def test_a_line_is_written_for_each_change_and_the_file_stays_small(server, tmp_path, monkeypatch):
    progress = Progress(server, tmp_path / "tinker", "tiny")
    file = tmp_path / "tinker" / "metrics.jsonl"

    def steps():
        return [json.loads(line)["step"] for line in file.read_text().splitlines()]

    progress.write()
    progress.write()
    assert steps() == [3]
    for _ in range(3):
        server.ledger.use("alice", steps=1)
        progress.write()
    assert steps() == [3, 4, 5, 6]
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    progress.write()
    assert steps() == [5, 6]


def test_a_folder_says_by_how_many_ranks_it_was_served_last(server, tmp_path):
    folder = tmp_path / "tinker"
    assert ranks_before(folder) is None
    for ranks in (2, 3):
        Progress(server, folder, "tiny", ranks)
        assert ranks_before(folder) == ranks
    # As servers wrote it that had one rank alone.
    (folder / "config.json").write_text('{"train": {"num_steps": 0}}')
    assert ranks_before(folder) == 1
