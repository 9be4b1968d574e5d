"""Environments in the rollout worker's own process: same episodes, same classes of failure, nothing left open."""

import asyncio

import pytest

from asyncrl.config import load_config, parse_config
from asyncrl.data.codec import decode_group, task_to_map, unpack
from asyncrl.env.config_check import check_place, env_services
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.registry import ENVS, load_env, runs_in_worker
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.launch.machines.placement import env_names
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Status, Task
from tests.services.rollout.test_rollout_service import ask
from tests.waiting import START_S

TASKS = [Task(f"heldout-{seed}", "gridworld", seed, "heldout") for seed in (1, 3, 5)]
HERE = __name__


class Troubled(Env):
    """Does with its first step what `trouble` says."""

    blocking = False
    in_worker = True

    def __init__(self, task, trouble="none"):
        super().__init__(task)
        self.trouble = trouble

    def reset(self):
        return [{"role": "user", "content": "goal"}]

    async def step(self, action):
        if self.trouble == "crash":
            raise KeyError("lost key")
        if self.trouble == "hang":
            await asyncio.Event().wait()
        return Step([{"role": "user", "content": "goal"}])


class Derived(Troubled):
    """Does not say for itself where it may run."""


def settings(services, tiny_model, **env):
    return parse_config(
        {
            "model": {"path": tiny_model},
            "env": {"name": "gridworld", "config": {"max_turns": 3}, "services": services, **env},
            "engine": {"max_model_len": 200, "max_num_seqs": 64},
            "rollout": {"max_tokens_per_turn": 24},
            "run": {"seed": 3},
        }
    )


def play(config, engine_url, folder):
    """Return the groups that a worker of the configuration plays, and the names of the processes beside it."""
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    process_group = ProcessGroup(folder)
    try:
        services = [
            process_group.start(name, ["serve", "env", "--folder", str(folder)]) for name in env_names(config)
        ]
        argv = ["serve", "rollout", "--folder", str(folder), "--model", config.model.path]
        argv += [word for one in services for word in ("--env", process_group.wait_ready(one, START_S))]
        worker = process_group.start("rollout", [*argv, "--engines", engine_url])
        url = process_group.wait_ready(worker, START_S)
        tasks = [task_to_map(Task(t.id, config.env.name, t.seed, t.split)) for t in TASKS]
        status, answer = ask(f"{url}/v1/rollouts", {"tasks": tasks, "samples": 4, "seed": 5})
        assert status == 200, answer
        return [decode_group(one) for one in unpack(answer)["groups"]], [one.name for one in services]
    finally:
        process_group.stop()


def what_came(groups):
    return [
        (
            t.token_ids.tolist(),
            t.loss_mask.tolist(),
            t.behavior_logprobs.round(4).tolist(),
            t.versions.tolist(),
            t.turns,
            t.reward,
            t.components,
            t.success,
            t.status,
            t.conversation,
        )
        for group in groups
        for t in group.trajectories
    ]


@pytest.mark.slow
def test_episodes_are_those_of_an_environment_service(tiny_model, engine_url, tmp_path):
    here, without = play(settings(0, tiny_model), engine_url, tmp_path / "worker")
    there, beside = play(settings(1, tiny_model), engine_url, tmp_path / "service")
    assert (without, beside) == ([], ["env"])
    assert what_came(here) == what_came(there)
    assert len({tuple(t.token_ids.tolist()) for group in here for t in group.trajectories}) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "failure", "error"),
    [("crash", "environment", "lost key"), ("hang", "infrastructure", "longer than 0.3 s")],
)
def test_trouble_is_classified_and_fails_its_episodes_alone(
    tiny_model, engine_url, tmp_path, trouble, failure, error
):
    config = settings(0, tiny_model, name=f"{HERE}:Troubled", config={"trouble": trouble}, step_timeout_s=0.3)
    played = [t for group in play(config, engine_url, tmp_path / "worker")[0] for t in group.trajectories]
    # A turn without an end is not answered by the environment.
    answered = [t for t in played if t.error != "max_tokens_per_turn"]
    assert answered
    for t in answered:
        assert (t.status, t.failure) == (Status.FAILED, failure)
        assert error in t.error
        assert t.info["attempts"] > 1


def test_an_episode_waits_for_a_place_and_every_place_is_given_back():
    async def scenario():
        envs = LocalEnvs(2, 60.0, served={"gridworld": {}})
        sessions = [await envs.open(TASKS[0], {}) for _ in range(2)]
        third = asyncio.create_task(envs.open(TASKS[0], {}))
        await asyncio.sleep(0.05)
        assert not third.done()
        await sessions.pop().close()
        sessions.append(await third)
        given_up = asyncio.create_task(envs.open(TASKS[0], {}))
        await asyncio.sleep(0.05)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        for session in sessions:
            await session.close()
        assert not envs.host.held
        assert not envs.host.sessions
        await envs.close()

    asyncio.run(scenario())


def test_a_wait_for_a_place_that_is_never_freed_ends_with_its_reason():
    async def scenario():
        envs = LocalEnvs(1, 0.05)
        await envs.open(TASKS[0], {})
        with pytest.raises(InfrastructureError, match="all 1 environment sessions are in use"):
            await envs.open(TASKS[0], {})
        await envs.close()

    asyncio.run(scenario())


def test_a_session_that_was_cut_off_in_a_step_is_freed():
    async def scenario():
        envs = LocalEnvs()
        session = await envs.open(Task("t", f"{HERE}:Troubled"), {"trouble": "hang"})
        step = asyncio.create_task(session.step(0, Action("go"), 60.0))
        await asyncio.sleep(0.05)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await session.close()
        await asyncio.sleep(0.05)
        assert not envs.host.held
        await envs.close()

    asyncio.run(scenario())


def test_a_worker_opens_no_other_environment_and_no_other_settings():
    async def scenario():
        envs = LocalEnvs(served={"gridworld": {"size": 4}})
        assert (await envs.open(TASKS[0], {})).max_turns == 8
        for task, config in ((Task("t", "calculator"), {}), (TASKS[0], {"size": 5})):
            with pytest.raises(EnvironmentFailure):
                await envs.open(task, config)
        await envs.close()

    asyncio.run(scenario())


def test_a_class_says_for_itself_that_it_may_run_in_a_worker():
    assert runs_in_worker(Gridworld)
    assert runs_in_worker(Troubled)
    assert not runs_in_worker(Derived)
    sandboxed = ("code", "repair", "terminal", "sql", "browser", "math_tool", "mcp", "mix")
    assert not any(runs_in_worker(load_env(name)) for name in sandboxed)
    assert all(
        not load_env(name).blocking for name in ENVS if _loads(name) and runs_in_worker(load_env(name))
    )


def _loads(name):
    try:
        load_env(name)
    except (ConfigError, ImportError):
        return False
    return True


def test_an_environment_that_may_not_run_in_a_worker_is_refused_by_name():
    check_place("gridworld", 0)
    check_place("code", 1)
    with pytest.raises(ConfigError, match=r"env.services: 0 .* 'code' does not allow"):
        check_place("code", 0)
    with pytest.raises(ConfigError, match=r"processes: must be 0 for services=0"):
        settings(0, "m", processes=2)


def test_a_run_without_environment_services_starts_none():
    assert env_names(settings(0, "m")) == []
    assert env_names(settings(1, "m")) == ["env"]
    assert env_names(settings(2, "m")) == ["env-0", "env-1"]
    assert env_names(settings(2, "m"), 3) == ["env-0", "env-1", "env-2"]


def test_sessions_run_in_the_worker_by_default_where_the_environment_allows_it():
    def services(*words):
        return env_services(load_config("gridworld_grpo", words))

    assert services() == 0
    assert services("env.services=1") == services("env.processes=2") == services("env.secrets=['KEY']") == 1
    assert services("scale.env=[2, 3]") == 2
    assert env_services(load_config("code_grpo")) == 1
    assert env_names(load_config("gridworld_grpo")) == []
    assert env_names(load_config("code_grpo")) == ["env"]
