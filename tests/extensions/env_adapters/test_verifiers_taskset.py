"""Our environments, played by the command `vf-eval` of verifiers 0.4 in a Python of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.benchmark_env import benchmark_python
from tests.extensions.env_adapters.chat_model import chat_model, to_the_goal, with_calculator
from tests.extensions.env_adapters.test_verifiers_v1 import PACKAGES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def evaluated(pytestconfig, tmp_path_factory):
    """Evaluates an environment of ours; returns the traces and what the model was asked."""
    python = benchmark_python(pytestconfig.cache.mkdir("verifiers-v1"), PACKAGES, dependencies=False)
    root = pytestconfig.rootpath

    def run(answer, env, config, tasks=3):
        folder = tmp_path_factory.mktemp("outputs")
        with chat_model(answer) as (url, asked):
            done = subprocess.run(
                [
                    Path(python).with_name("vf-eval"), "vf1-ours", "--env.taskset.env", env,
                    "--env.taskset.config", json.dumps(config), "--env.taskset.tasks", str(tasks),
                    "--env.agent.runtime.type", "subprocess", "--model", "policy", "--client.base-url", url,
                    "--client.api-key-var", "NONE", "--no-push", "--no-rich", "-o", str(folder), "-n", str(tasks),
                ],
                env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests/extensions/env_adapters'}"},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=300,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        (file,) = folder.rglob("traces.jsonl")
        episodes = [json.loads(line) for line in file.read_text().splitlines()]
        return [trace for one in episodes for trace in one["traces"]], asked

    return run


def test_an_expert_gets_our_reward_and_its_components(evaluated):
    traces, asked = evaluated(to_the_goal, "gridworld", {"size": 4})
    assert [trace["rewards"]["environment"]["score"] for trace in traces] == [1.0] * 3
    assert [(trace["metrics"]["success"], trace["metrics"]["goal"]) for trace in traces] == [(1.0, 1.0)] * 3
    assert sorted(trace["task"]["data"]["name"] for trace in traces) == [
        "heldout-1",
        "heldout-3",
        "heldout-5",
    ]
    assert {one["messages"][0]["content"].split()[0] for one in asked} == {"goal"}


def test_tools_are_offered_and_a_malformed_call_is_answered_under_its_own_id(evaluated):
    traces, asked = evaluated(with_calculator, "calculator", {"say_fraction": 0.0}, tasks=1)
    assert [trace["rewards"]["environment"]["score"] for trace in traces] == [1.0]
    assert asked[0]["tools"][0]["function"]["name"] == "calc"
    answers = [one["tool_call_id"] for one in asked[-1]["messages"] if one["role"] == "tool"]
    assert answers == ["bad1", "c1"]


def test_what_the_environment_fails_with_is_an_error_of_the_trace(evaluated):
    config = {"level": 3, "heldout_opponent": "policy"}
    traces, _ = evaluated(lambda body: {"content": "a 1"}, "nim", config, tasks=1)
    assert "plays several agents" in traces[0]["errors"][0]["message"]
