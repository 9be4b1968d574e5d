"""A run's metrics reach Weights & Biases, MLflow, trackio and SwanLab, and none of them can harm the run."""

import asyncio
import json
import sqlite3
import struct
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from asyncrl.cache import cache_folder
from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.metric_sinks import processes as sinks
from asyncrl.extensions.metric_sinks.monitor import Sending
from asyncrl.extensions.metric_sinks.processes import SinkProcesses, check_sinks
from tests.run.folders import add_step, make_run
from tests.shared import made_once
from tests.waiting import wait_until

OTHERS = {
    "mlflow": ["mlflow-skinny==3.17.2", "sqlalchemy", "alembic", "sqlparse", "pandas"],
    "trackio": ["trackio==0.43.0"],
    "swanlab": ["swanlab==0.10.3"],
}
"""They cannot be installed beside vLLM: their dependencies exclude versions of the lock. MLflow's core, with what
its SQLite store imports: all of MLflow takes minutes to install."""
INSTALL_S = 500.0
WANDB_HEADER, LOG_BLOCK, LOG_HEADER = 7, 2**15, struct.Struct("<IHB")


def other_python(sink):
    """Return the python of an environment with the sink's library alone; made once, and kept."""
    folder = (cache_folder() / f"{sink}-environment").resolve()

    def make(shared: Path) -> None:
        if (folder / "complete").exists():
            return
        venv.create(folder, clear=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            str(folder / "bin" / "python"),
        ]
        command = [*pip, "install", "-q", "--no-compile", *OTHERS[sink]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            (shared / "why").write_text(f"pip took more than {INSTALL_S:g} s")
            return
        if done.returncode:
            (shared / "why").write_text(done.stderr[-300:])
        else:
            (folder / "complete").touch()

    why = made_once(f"{sink}-environment", make) / "why"
    if not (folder / "complete").exists():
        pytest.skip(f"{sink} cannot be installed here: {why.read_text()}")
    return str(folder / "bin" / "python")


def settings(*changes):
    return load_config("gridworld_grpo", list(changes))


def steps_sent(run, sink):
    path = run / "sinks" / f"{sink}.json"
    return json.loads(path.read_text())["step"] if path.exists() else 0


def send(run, config, sink, check_before):
    """Send steps while they are added, then end and go on as a resumed run does, which repeats a step."""
    processes = SinkProcesses(run, config)
    wait_until(lambda: not list(processes.failures()) and steps_sent(run, sink) == 2, limit_s=180)
    add_step(run, 3, **{"reward/mean": 0.625, "skipped": "nan loss", "loss": float("nan")})
    assert list(processes.finish()) == []
    assert steps_sent(run, sink) == 3
    check_before()
    add_step(run, 3, **{"reward/mean": -1.0})
    add_step(run, 4, **{"reward/mean": 0.75})
    assert list(SinkProcesses(run, config).finish()) == []
    assert steps_sent(run, sink) == 4


def wandb_records(path):
    """Yield the records of a run that was offline: protocol buffers in a log as LevelDB writes it."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), WANDB_HEADER, b""
    while at + LOG_HEADER.size <= len(data):
        left = LOG_BLOCK - at % LOG_BLOCK
        if left < LOG_HEADER.size:
            at += left
            continue
        _, size, kind = LOG_HEADER.unpack_from(data, at)
        at += LOG_HEADER.size
        parts, at = parts + data[at : at + size], at + size
        if kind in (1, 4):  # whole, or the last part of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


@pytest.mark.slow
def test_steps_reach_weights_and_biases_offline(tmp_path, monkeypatch):
    for name, value in {"WANDB_MODE": "offline", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    run = make_run(tmp_path / "first", steps=2)
    config = settings('run.sinks=["tensorboard", "wandb"]')
    check_sinks(config)
    send(run, config, "wandb", lambda: None)
    sent, names, keys = {}, set(), set()
    for record in (r for path in run.glob("sinks/wandb/offline-run-*/*.wandb") for r in wandb_records(path)):
        if record.WhichOneof("record_type") == "run":
            names.add(record.run.display_name)
            keys |= {update.key for update in record.run.config.update}
        elif record.WhichOneof("record_type") == "history":
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            sent[items["_step"]] = items
    assert {step: items["reward/mean"] for step, items in sent.items()} == {1: 0.1, 2: 0.2, 3: 0.625, 4: 0.75}
    assert not {"skipped", "loss"} & set(sent[3])
    assert (names, {"train", "algo"} <= keys) == ({"first"}, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_reach_mlflow(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = make_run(tmp_path / "first", steps=2)
    config = settings('run.sinks=["mlflow"]', f"run.sink_python={other_python('mlflow')}")
    check_sinks(config)

    def ended():
        with sqlite3.connect(run / "sinks" / "mlflow.sqlite") as database:
            assert database.execute("SELECT name, status FROM runs").fetchall() == [("first", "FINISHED")]

    send(run, config, "mlflow", ended)
    with sqlite3.connect(run / "sinks" / "mlflow.sqlite") as database:
        rewards = database.execute("SELECT step, value FROM metrics WHERE key = 'reward/mean' ORDER BY step")
        assert rewards.fetchall() == [(1, 0.1), (2, 0.2), (3, 0.625), (4, 0.75)]
        times = database.execute("SELECT timestamp FROM metrics WHERE key = 'reward/mean' ORDER BY step")
        assert times.fetchone() == (1_001_000,)
        assert database.execute("SELECT value FROM params WHERE key = 'train.num_steps'").fetchone() == (
            "10",
        )
        assert database.execute("SELECT COUNT(*) FROM runs").fetchone() == (1,)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_reach_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = make_run(tmp_path / "first", steps=2)
    config = settings('run.sinks=["trackio"]', f"run.sink_python={other_python('trackio')}")
    check_sinks(config)
    send(run, config, "trackio", lambda: None)
    with sqlite3.connect(tmp_path / "trackio" / "asyncrl.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(name, step) for name, step, _ in rows] == [("first", step) for step in (1, 2, 3, 4)]
    assert [json.loads(metrics)["reward/mean"] for *_, metrics in rows] == [0.1, 0.2, 0.625, 0.75]


READ_SWANLAB = """
import json, sys
from google.protobuf.json_format import MessageToDict
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader

for path in sys.argv[1:]:
    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        print(json.dumps(MessageToDict(Record.FromString(data))))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_reach_swanlab_offline(tmp_path, monkeypatch):
    for name, value in {"SWANLAB_MODE": "offline", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    run, python = make_run(tmp_path / "first", steps=2), other_python("swanlab")
    config = settings('run.sinks=["swanlab"]', f"run.sink_python={python}")
    check_sinks(config)
    send(run, config, "swanlab", lambda: None)
    # Each start of the sink has a folder of its own.
    folders = sorted(
        (run / "sinks" / "swanlab").glob("run-*/*.swanlab"), key=lambda path: path.stat().st_mtime
    )
    said = subprocess.run(
        [python, "-c", READ_SWANLAB, *map(str, folders)], capture_output=True, text=True, check=True
    )
    records = [json.loads(line) for line in said.stdout.splitlines()]
    sent = [r["scalar"] for r in records if r.get("scalar", {}).get("key") == "reward/mean"]
    assert [(int(one["step"]), one["value"]["number"]) for one in sent] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.625),
        (4, 0.75),
    ]
    starts = [r["start"] for r in records if "start" in r]
    assert [(one["project"], one["name"]) for one in starts] == [("asyncrl", "first")] * 2
    assert len({one["id"] for one in starts}) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_swanlab_without_a_key_ends_with_the_reason_and_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = make_run(tmp_path / "first", steps=2)
    processes = SinkProcesses(
        run, settings('run.sinks=["swanlab"]', f"run.sink_python={other_python('swanlab')}")
    )
    told: list[str] = []
    wait_until(lambda: bool(told.extend(processes.failures()) or told), limit_s=180)
    assert "no API key was provided" in (run / "logs" / "sink-swanlab.log").read_text()
    assert list(processes.finish()) == []


@pytest.mark.slow
def test_a_sink_that_fails_is_told_of_once_and_nothing_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "no such mode")
    run = make_run(tmp_path / "first", steps=2)
    processes = SinkProcesses(run, settings('run.sinks=["wandb"]'))
    told: list[str] = []
    wait_until(lambda: bool(told.extend(processes.failures()) or told), limit_s=120)
    assert told == [
        f"sink-wandb ended with exit code 1; metrics.jsonl has everything, and the run does without it: see "
        f"{run / 'logs' / 'sink-wandb.log'}"
    ]
    assert "no such mode" in (run / "logs" / "sink-wandb.log").read_text()
    assert list(processes.finish()) == []


def test_a_sink_that_hangs_is_killed_after_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "END_S", 0.1)
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    run = make_run(tmp_path / "first", steps=2)
    processes = SinkProcesses(run, settings('run.sinks=["mlflow"]', f"run.sink_python={hanging}"))
    (process,) = processes._running.values()
    assert "had not sent everything 0.1 s after the run" in next(told := processes.finish())
    assert list(told) == []
    assert process.poll() is not None


def test_sinks_beside_a_run_are_told_of_when_they_fail_and_end_with_it(tmp_path):
    failing, patient = tmp_path / "failing", tmp_path / "patient"
    failing.write_text("#!/bin/sh\nexit 3\n")
    patient.write_text("#!/bin/sh\ncat\n")
    for python in (failing, patient):
        python.chmod(0o700)
    run = make_run(tmp_path / "first", steps=2)
    said: list[str] = []
    sending = [
        Sending(
            SinkProcesses(run, settings('run.sinks=["mlflow"]', f"run.sink_python={python}")), said.append
        )
        for python in (failing, patient)
    ]
    wait_until(lambda: any(asyncio.run(one.tick({})) for one in sending) or bool(said), limit_s=60)
    assert said == [
        "sink-mlflow ended with exit code 3; metrics.jsonl has everything, and the run does without it: see "
        f"{run / 'logs' / 'sink-mlflow.log'}"
    ]
    (process,) = sending[1].processes._running.values()
    for one in sending:
        one.ended()
    assert len(said) == 1
    assert process.poll() == 0


def test_each_policy_of_a_run_is_a_run_there(tmp_path):
    asked = tmp_path / "asked"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$3 $4 $5" >> {asked}\ncat\n')
    python.chmod(0o700)
    config = settings('run.sinks=["mlflow"]', f"run.sink_python={python}")
    config = config.model_copy(update={"policies": {"critic": None}})
    (tmp_path / "first").mkdir()
    assert list(SinkProcesses(tmp_path / "first", config).finish()) == []
    assert sorted(asked.read_text().splitlines()) == [
        f"mlflow first {tmp_path}/first",
        f"mlflow first-critic {tmp_path}/first/policies/critic",
    ]


def test_the_trainer_writes_tensorboards_files_unless_they_are_left_out():
    assert settings().run.tensorboard
    assert settings('run.sinks=["tensorboard", "wandb"]').run.tensorboard
    assert not settings('run.sinks=["wandb"]').run.tensorboard


def test_a_sink_without_its_library_is_refused_before_a_run_starts():
    config = settings('run.sinks=["trackio"]')
    with pytest.raises(ConfigError, match=r"run.sinks: 'trackio' is not installed for .*run.sink_python"):
        check_sinks(config)
    with pytest.raises(ConfigError, match=r"run.sink_python: '/no/python' cannot be run"):
        check_sinks(settings('run.sinks=["mlflow"]', "run.sink_python=/no/python"))
    check_sinks(settings("run.sinks=[]"))
