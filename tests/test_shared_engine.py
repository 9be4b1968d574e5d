"""A real run of two policies over one base model: an engine that joins it serves both, alone if it must."""

import json
import signal
import urllib.request

import msgpack
import pytest

from asyncrl.run.metrics import read_metrics
from asyncrl.services.engine.urls import policy_url
from tests.credentials import AUTHORIZED
from tests.runs import RECIPE, UNHURRIED, guest, processes_of, start, wait_for_step
from tests.waiting import running, wait_until

# Whole runs: each wait has its own deadline, and this one is for a machine that is slow altogether.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
POLICIES = """
[lora]
rank = 4
alpha = 8
[policies.helpers]
agents = ["helper"]
lora = { rank = 2 }
"""


@pytest.fixture
def workplace(workplace):
    recipe = RECIPE.replace('"gridworld"', '"tests.launch.relay:Relay"') + POLICIES
    (workplace / "recipe.toml").write_text(recipe)
    return workplace


def version_of(engine, policy):
    request = urllib.request.Request(policy_url(engine, policy) + "/asyncrl/v1/state", headers=AUTHORIZED)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return msgpack.unpackb(reply.read())["version"]


def steps_of(run):
    return [len(read_metrics(place)) for place in (run, run / "policies" / "helpers")]


def wait_for_further_steps(run, count, process):
    """Wait until each policy has trained `count` more."""
    before = steps_of(run)
    wait_until(
        lambda: all(now - then >= count for now, then in zip(steps_of(run), before, strict=True)),
        running(process),
    )


def own_engines(run):
    """Return the processes that are the run's own engine."""
    return [p for p in processes_of(run) if f"serve engine --folder {run}" in " ".join(p.info["cmdline"])]


def test_an_engine_that_joins_serves_every_policy_while_the_runs_own_is_down(workplace):
    run = workplace / "runs" / "shared"
    process = start(
        workplace, run.name, "train.num_steps=1000000", "env.num_tasks=0", "train.learning_rate=1e-4",
        UNHURRIED,
    )  # fmt: skip
    wait_for_step(run, 1, process)
    engine, url = guest(workplace, run, "engine")
    wait_until(lambda: version_of(url, "main") > 0 and version_of(url, "helpers") > 0, running(process))

    own = run / "endpoints" / "engine-0.json"
    (killed,) = own_engines(run)
    killed.kill()
    again = wait_until(lambda: [p for p in own_engines(run) if p != killed], running(process))
    # It starts no further before the run has taken the steps without it.
    again[0].suspend()
    assert not own.exists()
    # What lies in the buffers is enough for two steps each.
    wait_for_further_steps(run, 4, process)
    assert not own.exists()

    again[0].resume()
    engine.terminate()
    assert engine.wait(60) == 0
    wait_for_further_steps(run, 4, process)
    assert own.exists()
    process.send_signal(signal.SIGINT)
    process.wait(120)
    died = [json.loads(line)["name"] for line in (run / "restarts.jsonl").read_text().splitlines()]
    assert died == ["engine-0"]
    for place in (run, run / "policies" / "helpers"):
        fresh = [step["lag_0/mismatch_kl_k1"] for step in read_metrics(place) if step["lag_0/token_fraction"]]
        assert fresh and max(map(abs, fresh)) < 1e-6
