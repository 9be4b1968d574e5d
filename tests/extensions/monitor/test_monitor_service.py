"""The monitor shows runs to whoever has its token, and files of its page to everybody."""

import httpx
import pytest

from asyncrl.extensions.monitor.pages import FILES
from asyncrl.extensions.monitor.service import monitor_app
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, RUN
from tests.run.folders import make_run


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("monitor")
    make_run(folder / "runs" / "one")
    make_run(folder / "runs" / "two", overrides=("run.seed=7",))
    service = AppThread(monitor_app(folder / "runs", RUN.access("monitor")), folder)
    with httpx.Client(base_url=service.url, headers=AUTHORIZED, timeout=30) as client:
        yield client
    service.close()


def test_the_page_is_open_and_shows_nothing_by_itself(served):
    page = httpx.get(f"{served.base_url}/")
    assert page.status_code == 200
    assert "one" not in page.text.split()
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in FILES:
        assert httpx.get(f"{served.base_url}/web/{name}").status_code == 200


@pytest.mark.parametrize(
    "path", ["runs", "run?name=one", "episodes?name=one", "log?name=one&process=engine-0", "export?names=one"]
)
def test_data_needs_the_token(served, path):
    assert httpx.get(f"{served.base_url}/api/{path}").status_code == 401
    assert served.get(f"/api/{path}").status_code == 200


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("run?name=../one", "no run '../one'"),
        ("log?name=one&process=../../config", "no log"),
        ("episode?name=one&step=1&group=x&index=0", "no episode 0 of group 'x' in step 1"),
        ("episodes?name=one&colour=red", "no filter 'colour'"),
    ],
)
def test_what_there_is_not_is_refused_by_name(served, path, message):
    answer = served.get(f"/api/{path}")
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_files_beside_the_page_are_not_served(served):
    assert served.get("/web/..%2Fruns.py").status_code in (400, 404)
    assert served.get("/web/index.html").status_code == 400


def test_runs_steps_and_differences_come_as_they_were_written(served):
    assert {run["name"]: run["step"] for run in served.get("/api/runs").json()["runs"]} == {
        "one": 3,
        "two": 3,
    }
    steps = served.get("/api/steps", params={"name": "one", "keys": "reward/mean", "after": 1}).json()
    assert steps == {"step": [2, 3], "reward/mean": [0.2, 0.3]}
    rows = served.get("/api/compare", params={"names": "one,two"}).json()
    assert [row["key"] for row in rows] == ["run.seed"]


def test_the_timeline_has_a_span_for_each_part_of_a_step(served):
    spans = served.get("/api/timeline", params={"name": "one"}).json()["trainer"]
    assert [span["what"] for span in spans] == ["wait", "train", "publish"] * 3
    assert spans[0] == {"what": "wait", "start": 1000.125, "end": 1000.625, "step": 1}


def test_an_episode_has_a_text_for_each_token(served):
    key = {"name": "one", "step": 1, "group": "g-t1-0", "index": 0}
    episode = served.get("/api/episode", params=key).json()
    assert len(episode["texts"]) == len(episode["token_ids"]) == 16
    assert episode["texts"][0] == f"word{episode['token_ids'][0]}"


def test_prometheus_gets_the_runs_with_the_token(served):
    assert httpx.get(f"{served.base_url}/metrics").status_code == 401
    answer = served.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'asyncrl_run_step{run="one"} 3.0' in answer.text
