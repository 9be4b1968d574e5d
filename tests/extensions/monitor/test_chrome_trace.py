"""A run's timeline as a trace that Perfetto opens."""

import json

import pytest

from asyncrl.cli import main
from asyncrl.extensions.monitor.chrome_trace import chrome_trace
from tests.run.folders import add_activity, make_run


def sample(when, running=0, paused=False, in_flight=1, **more):
    engine = {"running": running, "waiting": 0, "paused": paused}
    return {"time": when, "engines": {"engine-0": engine}, "buffer": {"in_flight": in_flight}, **more}


def spans(trace, row):
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    found = [e for e in trace["traceEvents"] if e["ph"] == "X" and names[e["tid"]] == row]
    return [(e["name"], e["ts"], e["dur"]) for e in found]


def test_a_step_is_its_three_parts_and_the_version_they_end_in():
    step = {
        "step": 4,
        "time": 110.0,
        "time/wait_s": 2.0,
        "time/train_s": 1.5,
        "time/publish_s": 0.5,
        "reward/mean": 0.5,
    }
    trace = chrome_trace([step], [], [])
    assert spans(trace, "trainer") == [
        ("wait", 0, 2_000_000),
        ("train", 2_000_000, 1_500_000),
        ("publish", 3_500_000, 500_000),
    ]
    (version,) = [e for e in trace["traceEvents"] if e["ph"] == "i"]
    assert (version["name"], version["ts"], version["args"]) == ("version 4", 4_000_000, {"reward": 0.5})


def test_an_engine_decodes_or_waits_for_a_cause_until_that_changes():
    samples = [sample(100, 3), sample(102, 1), sample(104), sample(106, paused=True), sample(108)]
    waits = "idle: episodes wait for their environments"
    assert spans(chrome_trace([], samples, []), "engine-0") == [
        ("decode", 0, 4_000_000), (waits, 4_000_000, 2_000_000), ("idle: weights are swapped", 6_000_000, 2_000_000),
    ]  # fmt: skip


def test_an_environment_service_steps_or_waits_for_a_cause():
    samples = [
        sample(100 + 2 * i, 1, environments={"env": {"sessions": 1, "stepping": 0, "steps": steps}})
        for i, steps in enumerate((0, 3, 3, 3))
    ]
    waits = "idle: episodes wait for the policy"
    assert spans(chrome_trace([], samples, []), "env") == [
        (waits, 0, 2_000_000), ("step", 2_000_000, 2_000_000), (waits, 4_000_000, 2_000_000),
    ]  # fmt: skip


def test_the_time_between_two_launches_is_empty():
    samples = [sample(100, 3), sample(1000, 3), sample(1002, 3)]
    assert spans(chrome_trace([], samples, []), "engine-0") == [
        ("decode", 0, 10_000_000), ("decode", 900_000_000, 2_000_000),
    ]  # fmt: skip


def test_processes_have_their_load_and_the_time_they_were_down():
    sampled = sample(100.0, processes={"trainer": 0.5}, memory_bytes={"trainer": 2**20})
    trace = chrome_trace(
        [], [sampled], [{"name": "engine-0", "time": 130.0, "down_s": 20.0, "reason": "killed"}]
    )
    counters = {e["name"]: e["args"] for e in trace["traceEvents"] if e["ph"] == "C"}
    assert counters == {
        "groups in the buffer": {"in_flight": 1, "ready": 0, "taken": 0},
        "engine-0 requests": {"running": 0, "waiting": 0},
        "trainer cores": {"cores": 0.5},
        "trainer memory": {"MiB": 1.0},
    }
    assert spans(trace, "engine-0") == [("down", 10_000_000, 20_000_000)]


def test_a_trace_is_written_as_its_format_asks(tmp_path, capsys):
    run = make_run(tmp_path / "runs" / "one")
    for when in (1000.0, 1002.0):
        add_activity(run, time=when)
    assert main(["trace", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run / 'trace.json'}: ")
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "i", "C"}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] == "M" or (isinstance(event["ts"], int) and event["ts"] >= 0)
        assert event["ph"] != "X" or event["dur"] >= 0
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"} == named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs"], "has no config.json; give one of its runs: one"),
        (["runs/one", "--out", "no/file"], "cannot be written"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused(tmp_path, capsys, monkeypatch, arguments, message):
    make_run(tmp_path / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *arguments]) == 2
    assert message in capsys.readouterr().err
