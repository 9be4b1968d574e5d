"""The newest state of runs, as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families

from asyncrl.extensions.monitor.prometheus import exposition
from asyncrl.run.runs import run_line
from tests.run.folders import add_activity, long_ago, make_run


def test_running_runs_have_their_newest_numbers_and_others_their_state(tmp_path):
    one, old = make_run(tmp_path / "one"), make_run(tmp_path / "old")
    add_activity(one)
    add_activity(old)
    long_ago(old)
    text = exposition((run_line(folder.name, folder), folder) for folder in (one, old)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(name, **labels):
        (found,) = [s.value for s in samples if s.name == name and s.labels == labels]
        return found

    assert (value("asyncrl_run_step", run="one"), value("asyncrl_run_step", run="old")) == (3, 3)
    assert (value("asyncrl_run_running", run="one"), value("asyncrl_run_running", run="old")) == (1, 0)
    assert value("asyncrl_step_metric", run="one", metric="reward/mean") == 0.3
    assert value("asyncrl_buffer_groups", run="one", state="ready") == 2
    assert value("asyncrl_buffer_slots", run="one") == 8
    assert value("asyncrl_engine_kv_usage", run="one", engine="engine-0") == 0.25
    assert value("asyncrl_engine_requests", run="one", engine="engine-0", state="running") == 0
    assert value("asyncrl_process_memory_bytes", run="one", process="trainer") == 2**30
    assert value("asyncrl_run_processes", run="one", role="rollout") == 2
    assert {s.name for s in samples if s.labels["run"] == "old"} == {
        "asyncrl_run_step",
        "asyncrl_run_running",
    }
