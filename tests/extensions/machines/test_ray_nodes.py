"""A run on a real Ray cluster of several nodes, which are all on this machine; one of them is lost."""

import json
import subprocess

import pytest

from asyncrl.config import parse_config
from asyncrl.endpoint import advertised_host
from asyncrl.errors import ConfigError
from asyncrl.extensions.autoscale.settings import ScaleConfig
from asyncrl.extensions.machines.ray_nodes import RayNodes, bundles, head_gpus
from asyncrl.tls import make_certificates
from tests.packages import needs
from tests.runs import STARTED, command, environment, wait_for_step

needs("ray")
STEPS = 5


def test_each_process_of_a_node_has_a_bundle_with_what_its_role_needs():
    config = parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld", "services": 2},
            "engine": {"count": 1, "tensor_parallel": 2},
            "train": {"ranks": 4, "nodes": 2},
            "placement": {"ray": {"engine": {"decode": 1}, "env": {"CPU": 8}}},
        }
    )
    assert {one.name: (one.role, one.resources) for one in bundles(config, gpus=True)} == {
        "trainer-1": ("trainer", {"CPU": 2, "GPU": 2}),
        "engine-0": ("engine", {"CPU": 1, "GPU": 2, "decode": 1}),
        "env-0": ("env", {"CPU": 8}),
        "env-1": ("env", {"CPU": 8}),
        "rollout-0": ("rollout", {"CPU": 1}),
    }
    more = config.model_copy(update={"scale": ScaleConfig(rollout=[1, 3], env=[1, 3], engine=[1, 2])})
    assert [one.name for one in bundles(more, gpus=False)] == [
        *("trainer-1", "engine-0", "engine-1", "env-0", "env-1", "env-2"),
        *("rollout-0", "rollout-1", "rollout-2"),
    ]
    assert all("GPU" not in one.resources for one in bundles(config, gpus=False))
    in_workers = config.model_copy(update={"env": config.env.model_copy(update={"services": "auto"})})
    assert all(one.role != "env" for one in bundles(in_workers, gpus=False))
    own = {"b": {"agents": ["b"], "engine": {"count": 2, "tensor_parallel": 1}}}
    of_two = parse_config(config.model_dump(mode="json") | {"policies": own})
    assert [(one.name, one.role, one.resources["GPU"]) for one in bundles(of_two, gpus=True)[:5]] == [
        ("trainer-1", "trainer", 2), ("b-trainer-1", "trainer", 2),
        ("engine-0", "engine", 2), ("b-engine-0", "engine", 1), ("b-engine-1", "engine", 1),
    ]  # fmt: skip
    assert (head_gpus(config), head_gpus(of_two)) == (2, 4)
    over = config.engine.model_copy(update={"nodes": 2, "pipeline_parallel": 2})
    engines = bundles(config.model_copy(update={"engine": over}), gpus=True)[1:3]
    assert [(one.name, one.role, one.resources["GPU"]) for one in engines] == [
        ("engine-0", "engine", 2), ("engine-0-1", "engine", 2),
    ]  # fmt: skip


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head for the launcher; `add(NAME)` makes a node with room for what asks for that."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # All of its connections are encrypted.
    (files,) = make_certificates(tmp_path / "tls", [advertised_host("0.0.0.0")])
    monkeypatch.setenv("ASYNCRL_TLS", str(files))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add = lambda name: made.add_node(num_cpus=2, resources={name: 1})
    yield made
    made.shutdown()


@pytest.mark.slow
def test_a_run_on_ray_goes_on_elsewhere_when_a_node_is_lost(cluster, workplace):
    cluster.add("gpus")
    lost = cluster.add("others")
    settings = [
        f"run.folder={workplace / 'runs'}", "run.name=one", f"train.num_steps={STEPS}", "eval.tasks=0",
        "engine.weight_transfer=http", "placement.ray.engine.gpus=1", "placement.ray.env.others=0.5", "env.services=1",
        "placement.ray.rollout.others=0.5", "rollout.lease_s=20",
    ]  # fmt: skip
    run = workplace / "runs" / "one"
    with open(workplace / "one.err", "w") as errors:
        words = [str(workplace / "recipe.toml"), "--on", "ray", "--ray-address", cluster.address, *settings]
        process = subprocess.Popen(command(workplace, *words), env=environment(), stderr=errors)
    STARTED.append(process)
    wait_for_step(run, 1, process)
    # Environments and worker go with their node, and come again where Ray finds room for them.
    cluster.remove_node(lost, allow_graceful=False)
    cluster.add("others")
    assert process.wait(300) == 0, (workplace / "one.err").read_text()

    output = (workplace / "one.err").read_text()
    assert "placement: head: trainer; engine-0: engine-0; env: env; rollout-0: rollout-0" in output
    assert " at https://" in (run / "logs" / "engine-0.log").read_text()
    restarted = {json.loads(line)["name"] for line in (run / "restarts.jsonl").read_text().splitlines()}
    assert restarted == {"env", "rollout-0"}
    assert json.loads((run / "summary.json").read_text())["steps"] == STEPS


def test_a_cluster_that_is_not_there_is_refused_with_what_to_do():
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    with pytest.raises(ConfigError, match=r"--ray-address 127\.0\.0\.1:9: .*; start Ray here"):
        RayNodes(config, "127.0.0.1:9", "http://127.0.0.1:1", "").start()
