"""A real run whose episodes are played, in part, by agents elsewhere through a gateway that has joined it."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from asyncrl.credentials import join_credentials
from asyncrl.run.metrics import read_metrics
from tests.credentials import AUTHORIZED, RUN
from tests.runs import UNHURRIED, check_trained_once, environment, guest, start, wait_for_step
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow
STEPS = 10
PLAYER = Path(__file__).with_name("outside_player.py")
AGENT = Path(__file__).parent.parent / "recipes" / "agent_grpo" / "agent.py"
OWN_AGENT = f"""
import asyncio, runpy
walk = runpy.run_path({str(AGENT)!r})["play"]
async def play(task, episode):
    # Slower than those elsewhere: whoever is there for a group gets it.
    await asyncio.sleep(1)
    return await walk(task, episode)
"""


def trained(run, worker):
    """The rows of the run's tables that are of a worker whose name begins so."""
    import pyarrow.parquet as pq

    tables = (run / "trajectories").glob("*.parquet")
    return [
        row for path in tables for row in pq.read_table(path).to_pylist() if row["worker"].startswith(worker)
    ]


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_agents_elsewhere_play_through_a_gateway_that_joins_a_run_and_is_killed(workplace):
    run, played = workplace / "runs" / "outside", workplace / "played.jsonl"
    (workplace / "own_agent.py").write_text(OWN_AGENT)
    process = start(
        workplace, run.name, f"train.num_steps={STEPS}", f"env.num_tasks={4 * STEPS}", "rollout.lease_s=5",
        "rollout.groups_in_flight=1", "env.name=agent", f"env.config.callable={workplace}/own_agent.py:play",
        "env.config.tasks=gridworld", UNHURRIED,
    )  # fmt: skip
    wait_for_step(run, 1, process)
    buffer = json.loads((run / "endpoints" / "buffer.json").read_text())["url"]

    # The token in the run's folder is for rollout workers.
    refused = subprocess.run(
        [sys.executable, "-m", "asyncrl", "serve", "gateway", "--join", buffer,
         "--token-file", str(run / "join-token")],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "this join token is not for 'gateway'" in refused.stderr
    assert "`asyncrl runs join-token RUN --role gateway`" in refused.stderr

    token, agents = workplace / "gateway-join-token", workplace / "agents-token"
    token.write_text(join_credentials(RUN, ["gateway"]).text)
    gateway, url = guest(
        workplace, run, "gateway", "--token-file", str(token), "--agent-token-file", str(agents),
        "--name", "outside", "--host", "0.0.0.0", "--advertise", "localhost",
    )  # fmt: skip
    assert url.startswith("http://localhost:")
    asked = f"{url}/asyncrl/v1/episodes/next"
    for wrong in ({}, AUTHORIZED, {"Authorization": f"Bearer {token.read_text()}"}):
        assert httpx.post(asked, json={}, headers=wrong, timeout=60).status_code == 401
    client = httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {agents.read_text().strip()}"}, timeout=90
    )

    def status():
        return client.get("/asyncrl/v1/status").json()

    steps = len(read_metrics(run))
    wait_for_step(run, steps + 1, process)
    shown = status()
    assert (shown["running"], shown["groups"], shown["waiting"]) == ([], 0, 0), (
        "nobody has asked for an episode"
    )

    players = [
        subprocess.Popen([sys.executable, str(PLAYER), url, str(agents), str(played)], env=environment())
        for _ in range(2)
    ]
    try:
        wait_until(lambda: len(trained(run, "outside-")) >= 8, running(process))
        # One that this process asks for and never finishes.
        held = wait_until(
            lambda: client.post("/asyncrl/v1/episodes/next", json={"wait_s": 20}).json()["episode"],
            running(process),
        )
    finally:
        for player in players:
            player.kill()
            player.wait()
    open_tasks = set(status()["running"])
    assert held["task"]["id"] in open_tasks
    gateway.send_signal(signal.SIGKILL)
    gateway.wait()
    assert process.wait(500) == 0, (workplace / "outside.err").read_text()[-3000:]

    check_trained_once(run, STEPS)
    ledger = sqlite3.connect(run / "ledger.sqlite")
    found = {task: row for task, *row in ledger.execute("SELECT id, state, worker, attempts FROM tasks")}
    for task in open_tasks:
        assert found[task] == ["trained", "rollout-0", 1], (
            "the task of a lease that was lost is planned again"
        )
    assert sum(attempts for _, _, attempts in found.values()) == len(open_tasks)
    check_rows(trained(run, "outside-"), records(played), url)


def test_a_run_all_of_whose_agents_are_elsewhere_is_trained_to_its_end(workplace):
    run, played, steps = workplace / "runs" / "offered", workplace / "played.jsonl", 2
    process = start(
        workplace, run.name, f"train.num_steps={steps}", f"env.num_tasks={4 * steps}", "env.name=agent",
        "env.config.offered=true", "env.config.tasks=gridworld",
    )  # fmt: skip
    wait_until((run / "endpoints" / "rollout-0.json").exists, running(process))
    argv = [sys.executable, "-m", "asyncrl", "runs", "join-token", str(run), "--role", "gateway"]
    printed = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    token, agents = workplace / "gateway-join-token", workplace / "agents-token"
    token.write_text(printed.stdout)
    gateway, url = guest(
        workplace, run, "gateway", "--token-file", str(token), "--agent-token-file", str(agents)
    )
    player = subprocess.Popen([sys.executable, str(PLAYER), url, str(agents), str(played)], env=environment())
    try:
        assert process.wait(500) == 0, (workplace / "offered.err").read_text()[-3000:]
    finally:
        player.kill()
        player.wait()
    gateway.terminate()
    assert gateway.wait(60) == 0
    check_trained_once(run, steps)
    rows = trained(run, "")
    assert all(row["worker"].startswith("gateway-") for row in rows)
    check_rows(rows, records(played), url)


def check_rows(rows, finished, url):
    """The run's tables hold the episodes that were finished outside, as they were played and judged there."""
    assert all(one["status"] == 200 for one in finished)
    assert {one["told"]["url"] for one in finished} == {url}
    assert len(rows) >= 8
    for row in rows:
        (one,) = (
            one
            for one in finished
            if one["trajectories"][0]["token_ids"] == row["token_ids"]
            and (one["told"]["task"]["id"], one["told"]["task"]["episode_index"])
            == (row["task"], row["episode_index"])
        )
        assert row["reward"] == one["judged"]["reward"]
        assert row["success"] == one["judged"]["success"]
        # What the engine sampled, as the API showed it to the agent.
        mask = row["loss_mask"]
        sampled = [
            value for value, is_sampled in zip(row["behavior_logprobs"], mask, strict=True) if is_sampled
        ]
        assert sampled == pytest.approx(one["logprobs"], abs=1e-6)
        assert one["summary"]["counters"]["retokenized_tokens"] == 0
