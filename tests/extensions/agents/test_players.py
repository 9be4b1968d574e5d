"""A rollout worker whose environment is an agent, as a command and as a callable, on a real engine."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.chat.renderer import load_renderer
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, pack, task_to_map, unpack
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.players import Agents
from asyncrl.launch.evaluation.evaluate import evaluate
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.types import FailureClass, Status, Task
from tests.credentials import AUTHORIZED, PACKED
from tests.waiting import START_S

pytestmark = pytest.mark.slow
AGENT = os.path.join(os.path.dirname(__file__), "..", "..", "..", "recipes", "agent_grpo", "agent.py")
TASKS = [Task(f"t{seed}", "agent", seed, "heldout") for seed in (1, 3)]
CALLS_BY_ADDRESS = """
import json, os, urllib.error, urllib.request
from urllib.parse import urlsplit
url = os.environ["OPENAI_BASE_URL"]
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}]}).encode()
def status(**more):
    try:
        request = urllib.request.Request(url + "/chat/completions", body, headers | more)
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
at = urlsplit(url).hostname
components = {
    "loopback": float(at.startswith("127.")),
    "by_address": status(),
    "by_the_advertised_name": status(Host="host.containers.internal"),
    "by_a_foreign_name": status(Host="elsewhere.test"),
    "without_a_key": status(Authorization="Bearer no"),
}
print(json.dumps({"reward": 1, "components": components}))
"""
CRASHES = """
import json, sys
if json.load(sys.stdin)["seed"] == 3:
    sys.exit("broke")
print('{"reward": 2}')
"""


@pytest.fixture(scope="module")
def model(tiny_model, publish_weights):
    """The weights that the engine serves, and their version."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.02)
    return model, publish_weights(model)


@pytest.fixture
def start_worker(model, tiny_model, engine_url, tmp_path):
    """`start_worker(agent settings)` returns the worker's address and its configuration."""
    process_group = ProcessGroup(tmp_path)

    def start(**agent):
        config = parse_config(
            {
                "model": {"path": tiny_model},
                "env": {"name": "agent", "config": {"tasks": "gridworld", **agent}},
                "engine": {"max_model_len": 256, "max_num_seqs": 64},
                "rollout": {"max_tokens_per_turn": 8, "max_turns": 20, "episode_timeout_s": 90.0},
                "run": {"seed": 3},
            }
        )
        (tmp_path / "config.json").write_text(config.model_dump_json())
        argv = ["serve", "rollout", "--folder", str(tmp_path), "--model", tiny_model]
        child = process_group.start(
            "rollout", [*argv, "--env", "http://127.0.0.1:9", "--engines", engine_url]
        )
        return process_group.wait_ready(child, START_S), config

    yield start
    process_group.stop()


def rollouts(url, samples=3, **options):
    body = pack({"tasks": [task_to_map(task) for task in TASKS], "samples": samples, **options})
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/rollouts", body, PACKED), timeout=120
    ) as reply:
        return [decode_group(one) for one in unpack(reply.read())["groups"]]


@pytest.mark.parametrize("kind", ["command", "callable"])
def test_an_agents_episodes_come_back_as_exact_trajectories(
    start_worker, model, tiny_model, check_agreement, kind
):
    agent = {"command": [sys.executable, AGENT]} if kind == "command" else {"callable": f"{AGENT}:play"}
    url, _ = start_worker(**agent)
    groups, stops = rollouts(url), load_renderer(tiny_model).stop_token_ids
    assert [group.task for group in groups] == TASKS
    for group in groups:
        assert [t.episode_index for t in group.trajectories] == [0, 1, 2]
        for trajectory in group.trajectories:
            last = trajectory.token_ids[trajectory.turns[-1].end - 1]
            # A turn that its limit of tokens has cut leaves the episode truncated.
            assert trajectory.status is (Status.FINISHED if last in stops else Status.TRUNCATED)
            assert trajectory.success is (trajectory.reward == 1.0)
            assert 1 <= len(trajectory.turns) <= 8
            check_agreement(model[0], trajectory, 1.0, model[1])


def test_a_seed_repeats_every_token_and_evaluation_agrees_with_itself(start_worker):
    url, config = start_worker(callable=f"{AGENT}:play")

    def tokens(seed):
        return [t.token_ids.tolist() for group in rollouts(url, seed=seed) for t in group.trajectories]

    first = tokens(1)
    assert first == tokens(1)
    assert first != tokens(2)
    one, two = (evaluate(url, config, "agent", tasks=4, samples=2) for _ in range(2))
    assert one == two
    assert (one.tasks, one.failed) == (4, {})


def test_an_agent_reaches_a_gateway_that_listens_on_every_interface_by_the_machines_address(start_worker):
    url, _ = start_worker(command=[sys.executable, "-c", CALLS_BY_ADDRESS], gateway_host="0.0.0.0")
    for group in rollouts(url, samples=1):
        trajectory = group.trajectories[0]
        assert trajectory.components == {
            "loopback": 0, "by_address": 200, "by_the_advertised_name": 403, "by_a_foreign_name": 403,
            "without_a_key": 401,
        }  # fmt: skip


def test_a_gateway_answers_to_the_name_that_agents_are_told(start_worker):
    # The name resolves inside containers alone, so that here the call goes to the machine's own name for loopback.
    url, _ = start_worker(
        command=[sys.executable, "-c", CALLS_BY_ADDRESS.replace("url = ", "told = ").replace(
            "headers = {", 'url = told.replace("host.containers.internal", "127.0.0.1")\nheaders = {', 1
        )],
        gateway_host="0.0.0.0",
        gateway_advertise="host.containers.internal",
    )  # fmt: skip
    for group in rollouts(url, samples=1):
        trajectory = group.trajectories[0]
        assert trajectory.components["by_the_advertised_name"] == 200
        assert trajectory.components["by_a_foreign_name"] == 403


@pytest.fixture
def container_network():
    """Another network, as a container has: yields a command that runs what follows in it, and this side's address."""
    name, here, there = f"asyncrl-{os.getpid()}", "169.254.231.1", "169.254.231.2"
    side, other = f"va{os.getpid()}", f"vb{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], check=False).returncode:
        pytest.skip("needs the rights to add a network")
    try:
        for line in (
            f"link add {side} type veth peer name {other} netns {name}",
            f"addr add {here}/30 dev {side}",
            f"link set {side} up",
            f"-n {name} addr add {there}/30 dev {other}",
            f"-n {name} link set {other} up",
        ):
            if subprocess.run(["ip", *line.split()], check=False).returncode:
                pytest.skip("needs the rights to connect two networks")
        yield ["ip", "netns", "exec", name], here
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def test_an_agent_in_another_network_plays_through_the_gateway(start_worker, container_network):
    enter, here = container_network
    url, _ = start_worker(
        command=[*enter, sys.executable, AGENT], gateway_host="0.0.0.0", gateway_advertise=here
    )
    for group in rollouts(url, samples=2):
        assert {t.status for t in group.trajectories} <= {Status.FINISHED, Status.TRUNCATED}
        assert all(t.turns for t in group.trajectories)


def test_a_gateway_on_loopback_is_not_reached_from_another_network(start_worker, container_network):
    enter, _ = container_network
    url, _ = start_worker(command=[*enter, sys.executable, "-c", CALLS_BY_ADDRESS])
    assert {t.failure for group in rollouts(url, samples=1) for t in group.trajectories} == {
        FailureClass.ENVIRONMENT
    }


def test_a_crashing_agent_fails_its_episodes_and_not_the_worker(start_worker):
    url, _ = start_worker(command=[sys.executable, "-c", CRASHES])
    fine, broken = rollouts(url, samples=2)
    assert [t.reward for t in fine.trajectories] == [2.0, 2.0]
    assert {t.failure for t in broken.trajectories} == {FailureClass.ENVIRONMENT}
    assert "exit code 1: broke" in broken.trajectories[0].error
    status = json.loads(
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/status", headers=AUTHORIZED), timeout=10
        ).read()
    )
    assert status["mode"] == "on request"


def test_unknown_agent_settings_are_refused_by_key(tiny_model):
    config = parse_config(
        {"model": {"path": tiny_model}, "env": {"name": "agent", "config": {"commands": ["x"]}}}
    )
    with pytest.raises(ConfigError, match=r"env\.config\.commands: .*did you mean 'command'"):
        Agents(config, None, None, None)


def test_the_tasks_of_an_agent_are_those_of_the_environment_it_names():
    tasks = load_env("agent").tasks("heldout", "agent", tasks="gridworld")
    assert [(t.id, t.env, t.seed) for t, _ in zip(tasks, range(2), strict=False)] == [
        ("heldout-1", "agent", 1),
        ("heldout-3", "agent", 3),
    ]
