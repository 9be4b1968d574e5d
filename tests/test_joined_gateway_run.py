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
from tests.credentials import AUTHORIZED, RUN
from tests.runs import UNHURRIED, check_trained_once, environment, guest, start, wait_for_step
from tests.waiting import running, wait_until

pytestmark = pytest.mark.slow
STEPS = 16
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


def ledger(run, query):
    return sqlite3.connect(run / "ledger.sqlite").execute(query).fetchall()


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
    # Nobody has asked: nothing was leased.
    assert ledger(run, "SELECT count(*) FROM tasks WHERE worker LIKE 'outside-%'") == [(0,)]

    players = [
        subprocess.Popen([sys.executable, str(PLAYER), url, str(agents), str(played)], env=environment())
        for _ in range(2)
    ]
    try:
        trained = "SELECT count(*) FROM tasks WHERE worker LIKE 'outside-%' AND state = 'trained'"
        wait_until(lambda: ledger(run, trained)[0][0] >= 3, running(process))
    finally:
        for player in players:
            player.kill()
            player.wait()
    with httpx.Client(
        headers={"Authorization": f"Bearer {agents.read_text().strip()}"}, timeout=90
    ) as client:
        held = wait_until(lambda: client.post(asked, json={"wait_s": 20}).json()["episode"], running(process))
    leased = "SELECT id FROM tasks WHERE worker LIKE 'outside-%' AND state = 'leased'"
    open_tasks = {task for (task,) in ledger(run, leased)}
    assert held["task"]["id"] in open_tasks
    gateway.send_signal(signal.SIGKILL)
    gateway.wait()
    assert process.wait(500) == 0, (workplace / "outside.err").read_text()[-3000:]

    check_trained_once(run, STEPS)
    found = {
        task: (state, worker, attempts)
        for task, state, worker, attempts in ledger(run, "SELECT id, state, worker, attempts FROM tasks")
    }
    for task in open_tasks:
        assert found[task] == ("trained", "rollout-0", 1)
    check_rows(
        run, records(played), url, {task for task, row in found.items() if row[1].startswith("outside")}
    )


def check_rows(run, finished, url, tasks):
    """The run's tables hold the episodes that were finished outside, as they were played and judged there."""
    import pyarrow.parquet as pq

    assert all(one["status"] == 200 for one in finished)
    assert {one["told"]["url"] for one in finished} == {url}
    tables = (run / "trajectories").glob("*.parquet")
    rows = [row for path in tables for row in pq.read_table(path).to_pylist() if row["task"] in tasks]
    assert len(rows) >= 12
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
