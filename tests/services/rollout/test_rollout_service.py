"""The rollout worker over HTTP, with a real engine and a real environment service: tasks in, trajectories out."""

import json
import urllib.error
import urllib.request

import pytest

from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, pack, task_to_map, unpack
from asyncrl.launch.evaluation.evaluate import evaluate
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.types import Status, Task
from tests.credentials import PACKED
from tests.extensions.monitor.dashboard import missing
from tests.waiting import START_S

pytestmark = pytest.mark.slow
TASKS = [Task(f"heldout-{seed}", "gridworld", seed, "heldout") for seed in (1, 3, 5)]


@pytest.fixture(scope="module")
def config(tiny_model):
    return parse_config(
        {
            "model": {"path": tiny_model},
            "env": {"name": "gridworld", "config": {"max_turns": 3}},
            "engine": {"max_model_len": 200, "max_num_seqs": 64},
            "rollout": {"max_tokens_per_turn": 12},
            "run": {"seed": 3},
        }
    )


@pytest.fixture(scope="module")
def worker(config, engine_url, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    (folder / "config.json").write_text(config.model_dump_json())
    process_group = ProcessGroup(folder)
    try:
        env = process_group.wait_ready(
            process_group.start("env", ["serve", "env", "--folder", str(folder)]), 60
        )
        argv = ["serve", "rollout", "--folder", str(folder), "--model", tiny_model]
        child = process_group.start("rollout", [*argv, "--env", env, "--engines", engine_url])
        yield process_group.wait_ready(child, START_S)
    finally:
        process_group.stop()


def ask(url, body=None, raw=None):
    data = raw if raw is not None else pack(body) if body is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, PACKED), timeout=120) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def rollouts(worker, **options):
    body = {"tasks": [task_to_map(task) for task in TASKS], "samples": 4, **options}
    status, answer = ask(f"{worker}/v1/rollouts", body)
    assert status == 200, answer
    return [decode_group(one) for one in unpack(answer)["groups"]]


def test_given_tasks_come_back_as_groups_in_their_order(worker, engine_url):
    _, state = ask(f"{engine_url}/asyncrl/v1/state")
    version = unpack(state)["version"]
    groups = rollouts(worker)
    assert [g.task for g in groups] == TASKS
    for g in groups:
        assert [t.episode_index for t in g.trajectories] == [0, 1, 2, 3]
        for t in g.trajectories:
            assert t.status in (Status.FINISHED, Status.TRUNCATED)
            assert len(t.token_ids) == len(t.loss_mask) == len(t.behavior_logprobs) == len(t.versions) <= 200
            assert set(t.versions[t.loss_mask].tolist()) == {version}
            assert (t.behavior_logprobs[t.loss_mask] < 0).all()
            assert 1 <= len(t.turns) <= 3
            assert all(turn.end - turn.start <= 12 for turn in t.turns)


def test_a_seed_repeats_every_token_and_another_does_not(worker):
    def tokens(seed):
        return [t.token_ids.tolist() for g in rollouts(worker, seed=seed) for t in g.trajectories]

    first = tokens(1)
    assert first == tokens(1)
    assert first != tokens(2)
    assert len({tuple(ids) for ids in first}) > 1


def test_temperature_zero_is_greedy(worker):
    for g in rollouts(worker, temperature=0.0):
        assert len({t.token_ids.tobytes() for t in g.trajectories}) == 1


def test_an_environment_that_refuses_its_task_fails_the_episode_and_not_the_worker(worker):
    body = {"tasks": [task_to_map(Task("x", "no_such_env"))], "samples": 2}
    status, answer = ask(f"{worker}/v1/rollouts", body)
    assert status == 200
    trajectories = decode_group(unpack(answer)["groups"][0]).trajectories
    assert [t.failure for t in trajectories] == ["environment"] * 2
    assert "no_such_env" in trajectories[0].error


def test_evaluation_through_the_worker_repeats(worker, config):
    one, two = (evaluate(worker, config, "gridworld", tasks=5, samples=2) for _ in range(2))
    assert one == two
    assert (one.tasks, one.samples, one.failed) == (5, 2, {})
    assert 0.0 <= one.mean <= 1.0
    assert 0 <= one.truncated <= 10


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "body: must be a map with a list `tasks`"),
        ([1], "body: must be a map with a list `tasks`"),
        ({"tasks": []}, "tasks: must hold 1 to 4096 tasks, got 0"),
        ({"tasks": [{"id": "a", "env": "gridworld"}], "sample": 2}, "sample: unknown key"),
        (
            {"tasks": [{"id": "a", "env": "gridworld"}], "samples": 0},
            "samples: must be an integer from 1 to 1024",
        ),
        (
            {"tasks": [{"id": "a", "env": "gridworld"}], "temperature": -1},
            "temperature: must be from 0 to 100",
        ),
        ({"tasks": [{"id": "a", "env": "gridworld"}], "seed": "x"}, "seed: must be an integer or nil"),
        ({"tasks": [{"id": "a"}]}, "env"),
        ({"tasks": [7]}, "task"),
    ],
)
def test_a_wrong_body_is_refused_by_name(worker, body, message):
    status, answer = ask(f"{worker}/v1/rollouts", body)
    assert status == 400
    assert message in json.loads(answer)["error"]["message"]


def test_a_body_that_is_not_msgpack_is_refused(worker):
    status, answer = ask(f"{worker}/v1/rollouts", raw=b"\xc1")
    assert (status, json.loads(answer)["error"]["type"]) == (400, "InputError")


def test_the_worker_says_how_it_is(worker):
    assert ask(f"{worker}/healthz")[0] == 200
    status = json.loads(ask(f"{worker}/v1/status")[1])
    assert status["mode"] == "on request"
    assert status["engine_busy_s"] > 0
    metrics = ask(f"{worker}/metrics")[1].decode()
    assert "asyncrl_rollout_groups_total" in metrics
    assert missing("asyncrl_rollout_", metrics) == []
