"""Agents as commands and callables: what they report, what becomes of those that fail, branches in a group."""

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.buffer.put import admit
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import ConfigError, InfrastructureError, InputError
from asyncrl.extensions.agents.gateway.agent_player import AgentPlayer, AgentSettings, LocalHost, outcome
from asyncrl.extensions.agents.gateway.agents import (
    PLAIN,
    CallableAgent,
    CommandAgent,
    OpenEpisode,
    Report,
    gateway_hosts,
    load_agent,
    parse_report,
)
from asyncrl.extensions.agents.harness.agent import load_any_agent
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.waiting import wait_until

EPISODE = OpenEpisode("id", "ep-key", "http://gateway", "reward-key")
LEASE = Lease(
    "lease", Task("t", "agent", 4), version=3, deadline=4, group_size=3, attempt=1, expires_in_s=60.0
)


def run_command(code, timeout_s=20.0, task=None):
    agent = CommandAgent([sys.executable, "-c", code])
    return asyncio.run(agent.run(task or {"seed": 4}, EPISODE, timeout_s))


def test_a_command_reads_its_task_finds_its_gateway_and_reports():
    code = """
import json, os, sys
task = json.load(sys.stdin)
assert os.environ["OPENAI_BASE_URL"] == "http://gateway/v1" and os.environ["ANTHROPIC_API_KEY"] == "ep-key"
print("some log")
print(json.dumps({"reward": task["seed"] / 8, "success": True, "components": {"form": 1}}))
print("the end")
"""
    assert run_command(code) == Report(0.5, True, {"form": 1.0})


def test_an_agent_elsewhere_is_started_by_nobody():
    agent = load_any_agent({"offered": True})
    with pytest.raises(
        InfrastructureError, match="ask a joined gateway for their episodes; a worker starts none"
    ):
        asyncio.run(agent.run({}, EPISODE, 1.0))


def test_a_command_does_not_see_the_workers_secrets(monkeypatch):
    monkeypatch.setenv("ASYNCRL_TOKEN", "secret")
    code = "import os; print('{\"reward\": %d}' % ('ASYNCRL_TOKEN' in os.environ))"
    assert run_command(code).reward == 0.0


def test_a_command_can_report_rewards_over_http_and_what_it_starts_inherits_no_key_for_that():
    code = (
        "import json, os, sys; task = json.load(sys.stdin); key = task['reward_key']; "
        "print(json.dumps({'reward': 2 * (key == 'reward-key') + (key in str(dict(os.environ)))}))"
    )
    assert run_command(code).reward == 2.0


def test_a_crash_keeps_what_was_reported_and_says_why():
    report = run_command("print('{\"reward\": 1}'); raise SystemExit('no more')")
    assert (report.reward, report.problem) == (1.0, "exit code 1: no more")


def test_a_hanging_command_is_ended_with_all_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    start = time.monotonic()
    assert run_command(code, timeout_s=3.0).problem == "the agent did not end within 3 s"
    assert time.monotonic() - start < 550
    pid = int(pid_file.read_text())
    wait_until(lambda: not runs(pid), limit_s=60)


@pytest.mark.parametrize("session", ["its own", "the command's"])
def test_a_child_that_a_command_leaves_behind_is_ended_and_not_waited_for(tmp_path, session):
    pid_file = tmp_path / "pid"
    code = f"""
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleep, start_new_session={session == "its own"})
open({str(pid_file)!r}, "w").write(str(child.pid))
print('{{"reward": 1}}')
"""
    start = time.monotonic()
    assert run_command(code, timeout_s=50.0) == Report(1.0)
    assert time.monotonic() - start < 40
    assert not runs(int(pid_file.read_text()))


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_a_command_wrote_before_its_end_counts_though_a_child_holds_its_outputs():
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
print("the last words", file=sys.stderr, end="", flush=True)
print("x" * 3_000_000)
print('{"reward": 0.5}', flush=True)
os._exit(3)
"""
    report = run_command(code, timeout_s=50.0)
    assert (report.reward, report.problem) == (0.5, "exit code 3: the last words")


def test_a_flood_of_output_is_cut_and_its_last_report_counts():
    code = "print('x' * 3_000_000); print('{\"reward\": 0}'); print('{\"reward\": 2}')"
    assert run_command(code).reward == 2.0


def test_a_command_that_is_not_there_is_a_problem_of_its_name():
    report = asyncio.run(CommandAgent(["no-such-agent"]).run({}, EPISODE, 1.0))
    assert "no-such-agent: cannot be started" in report.problem


def test_callables_run_as_coroutines_or_on_threads_and_their_errors_are_problems():
    async def coroutine(task, episode):
        return {"reward": task["seed"], "success": False}

    def function(task, episode):
        return 0.25

    def broken(task, episode):
        raise RuntimeError("no")

    def run(agent):
        return asyncio.run(CallableAgent(agent).run({"seed": 2}, EPISODE, 5.0))

    assert run(coroutine) == Report(2.0, False)
    assert run(function) == Report(0.25)
    assert run(broken).problem == "RuntimeError: no"


def test_as_many_functions_run_at_once_as_are_asked_for():
    meeting = threading.Barrier(48)

    def function(task, episode):
        meeting.wait(60)
        return 1.0

    async def scenario():
        agent = CallableAgent(function)
        return await asyncio.gather(*(agent.run({}, EPISODE, 60.0) for _ in range(48)))

    assert asyncio.run(scenario()) == [Report(1.0)] * 48


def test_functions_that_hang_fail_their_own_episodes_only():
    go_on = threading.Event()

    def function(task, episode):
        if task["hang"]:
            go_on.wait(60)
        return 1.0

    async def scenario():
        agent = CallableAgent(function)
        # More than the event loop's own pool has threads.
        hung = await asyncio.gather(*(agent.run({"hang": True}, EPISODE, 0.2) for _ in range(40)))
        overdue = agent.overdue
        fine = await agent.run({"hang": False}, EPISODE, 30.0)
        go_on.set()
        while agent.overdue:
            await asyncio.sleep(0.01)
        return hung, overdue, fine

    hung, overdue, fine = asyncio.run(scenario())
    assert hung == [Report(problem="the agent did not end within 0.2 s", end="deadline")] * 40
    assert (overdue, fine) == (40, Report(1.0))


def test_a_worker_ends_although_a_function_hangs():
    code = """
import asyncio, time
from asyncrl.extensions.agents.gateway.agents import PLAIN, CallableAgent, OpenEpisode

def hang(task, episode):
    time.sleep(300)

print(asyncio.run(CallableAgent(hang).run({}, OpenEpisode("id", "key", "http://gateway"), 0.2)).problem)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout == "the agent did not end within 0.2 s\n"


def test_a_coroutine_that_does_not_let_itself_be_ended_is_not_waited_for():
    async def stubborn(task, episode):
        for _ in range(4):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def scenario():
        start = time.monotonic()
        report = await CallableAgent(stubborn).run({}, EPISODE, 0.2)
        return report, time.monotonic() - start

    report, took_s = asyncio.run(scenario())
    assert report.problem == "the agent did not end within 0.2 s"
    assert took_s < 6


def test_an_agent_that_exits_ends_its_episode_and_not_the_worker():
    async def coroutine(task, episode):
        sys.exit("enough")

    def function(task, episode):
        sys.exit("enough")

    for agent in (coroutine, function):
        report = asyncio.run(CallableAgent(agent).run({}, EPISODE, 5.0))
        assert report.problem == "SystemExit: enough"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("text", "must report a number or a map"),
        ({"rewrad": 1}, "report.rewrad: unknown"),
        ({"reward": "1"}, "report.reward: must be a number up to ±1e+12"),
        ({"reward": float("nan")}, "report.reward"),
        ({"reward": 1e13}, "report.reward: must be a number up to ±1e+12, got '10000000000000.0'"),
        pytest.param(10**400, "report.reward: must be a number up to ±1e+12, got '1000", id="large"),
        pytest.param(
            -(10**5000), "report.reward: must be a number up to ±1e+12, got a huge integer", id="huge"
        ),
        ({"components": {"a": 10**40}}, "report.components"),
        ({"components": {1: 1.0}}, "report.components"),
        ({"success": 1}, "report.success"),
        ({"components": {"a": None}}, "report.components"),
    ],
)
def test_a_wrong_report_is_a_problem_by_field(raw, problem):
    assert problem in parse_report(raw).problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "needs one of harness, command, callable and offered=true"),
        (
            {"offered": True, "callable": "json:dumps"},
            "needs one of harness, command, callable and offered=true",
        ),
        ({"command": "python agent.py"}, "must be a list of texts"),
        ({"callable": "no_such_module:fn"}, "cannot be imported"),
        ({"callable": "json:nothing"}, "cannot be imported"),
        ({"callable": "sys:path"}, "is not callable"),
    ],
)
def test_a_wrong_agent_is_refused_by_key(config, problem):
    with pytest.raises(ConfigError, match=problem):
        load_agent(config)


def counted(calls=1, limit="", cut="", lost=False, running=0, refusal="", **counters):
    """A gateway's view of an episode."""
    return {
        "calls": calls, "limit": limit, "cut": cut, "lost": lost, "running": running, "refusal": refusal,
        "counters": counters,
    }  # fmt: skip


def exits(code, end="exit", reward=None):
    return Report(reward, problem=f"exit code {code}: words", end=end)


SLOW = Report(problem="the agent did not end within 9 s", end="deadline")


@pytest.mark.parametrize(
    ("report", "episode", "status", "failure", "gave_up"),
    [
        (Report(0.0), counted(), None, None, False),
        (Report(), counted(rewards=1), None, None, False),
        (exits(1), counted(), Status.FINISHED, None, True),
        (exits(1, reward=0.5), counted(), Status.FINISHED, None, False),
        (exits(1), counted(rewards=1), Status.FINISHED, None, False),
        (exits(1), counted(infrastructure_errors=1), Status.FINISHED, None, True),
        (exits(1), counted(limit="max_calls"), Status.TRUNCATED, None, True),
        (exits(1), counted(cut="max_tokens_per_turn"), Status.TRUNCATED, None, True),
        (SLOW, counted(), Status.TRUNCATED, None, True),
        (replace(SLOW, reward=1.0), counted(running=1), Status.TRUNCATED, None, False),
        (
            Report(problem="BadRequestError", end="raised"),
            counted(limit="max_tokens"),
            Status.TRUNCATED,
            None,
            True,
        ),
        (exits(1), counted(lost=True), Status.FAILED, FailureClass.INFRASTRUCTURE, False),
        (SLOW, counted(running=1), Status.FAILED, FailureClass.ENVIRONMENT, False),
        (exits(1), counted(calls=0), Status.FAILED, FailureClass.ENVIRONMENT, False),
        (exits(-9, "killed"), counted(), Status.FAILED, FailureClass.ENVIRONMENT, False),
        (exits(127, "not started"), counted(), Status.FAILED, FailureClass.ENVIRONMENT, False),
        (
            Report(problem="KeyError: 'x'", end="raised"),
            counted(),
            Status.FAILED,
            FailureClass.ENVIRONMENT,
            False,
        ),
        (Report(), counted(), Status.FAILED, FailureClass.ENVIRONMENT, False),
    ],
)
def test_what_an_agent_did_is_an_outcome_and_what_says_nothing_of_it_a_failure(
    report, episode, status, failure, gave_up
):
    ended = outcome(report, episode)
    assert (ended.status, ended.failure, ended.gave_up) == (status, failure, gave_up)


def test_a_failure_names_the_call_that_was_refused():
    ended = outcome(exits(1), counted(calls=0, refusal="/v1/messages: 400: no tools"))
    assert ended.error == "agent: exit code 1: words; its last call was refused: /v1/messages: 400: no tools"


@pytest.mark.parametrize(
    ("code", "end"),
    [("raise SystemExit(3)", "exit"), ("raise SystemExit(127)", "not started"), ("raise SystemExit(137)", "killed"),
     ("import os; os.kill(os.getpid(), 9)", "killed"), ("print('{}')", "")],
)  # fmt: skip
def test_a_command_says_how_it_ended(code, end):
    assert run_command(code).end == end


def test_a_report_that_was_written_before_the_deadline_counts():
    report = run_command("print('{\"reward\": 1}', flush=True); import time; time.sleep(60)", timeout_s=3.0)
    assert (report.reward, report.end) == (1.0, "deadline")


def test_an_agent_that_gives_up_is_trained_with_nothing(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        host = LocalHost(gateway.episodes, "http://gateway")

        class Exits:
            recording = PLAIN

            async def run(self, task, episode, timeout_s):
                user = {"role": "user", "content": "go"}
                await chat(gateway, episode).chat.completions.create(model="m", messages=[user])
                return exits(1)

        player = AgentPlayer(host, Exits(), AgentSettings())
        return await EpisodeGroupRunner(player).run_group(LEASE, "w", 20.0)

    group = asyncio.run(scenario())
    assert [(t.status, t.reward, t.success, t.usable) for t in group.trajectories] == [
        (Status.FINISHED, 0.0, False, True)
    ] * 3
    assert group.trajectories[0].components == {"agent_error": 1.0}
    assert group.trajectories[0].error == "agent: exit code 1: words"


async def play(gateway, function, **settings):
    host = LocalHost(gateway.episodes, "http://gateway")
    player = AgentPlayer(host, CallableAgent(function), AgentSettings(**settings))
    return await EpisodeGroupRunner(player).run_group(LEASE, "w", 20.0)


def chat(gateway, episode):
    """A client for the episode of a callable agent."""
    return gateway.openai(episode)


def test_a_group_of_branching_episodes_trains_each_sampled_token_once_and_survives_the_wire(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: f"after {prompt.count('user')}")

        async def agent(task, episode):
            client = chat(gateway, episode)
            user = {"role": "user", "content": "go"}
            first = await client.chat.completions.create(model="m", messages=[user])
            said = {"role": "assistant", "content": first.choices[0].message.content}
            for branch in range(1 + task["episode_index"]):
                more = [user, said, {"role": "user", "content": f"branch {branch}"}]
                await client.chat.completions.create(model="m", messages=more)
            return float(task["episode_index"])

        return gateway, await play(gateway, agent)

    gateway, group = asyncio.run(scenario())
    assert [t.episode_index for t in group.trajectories] == [0, 1, 2, 3, 4, 5]
    assert [t.rollout for t in group.trajectories] == [0, 1, 2, 1, 2, 2]
    assert [t.reward for t in group.trajectories] == [0.0, 1.0, 2.0, 1.0, 2.0, 2.0]
    sampled = len(gateway.engine.tokens("after 1")) * 3 + len(gateway.engine.tokens("after 2")) * 6
    assert sum(t.num_sampled for t in group.trajectories) == sampled
    assert decode_group(encode_group(group)).trajectories[5].rollout == 2
    assert admit(group, 3, {"rewards"}, 256).outcome == "ready"
    assert {request.min_version for request in gateway.engine.requests} == {3}
    assert len(gateway.episodes) == 0


def test_a_group_says_which_turns_were_asked_for_at_once(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        both, engine, numbers = asyncio.Barrier(2), gateway.engine.generate, itertools.count()

        async def generate(request):
            if next(numbers) in (1, 2):
                await both.wait()
            return await engine(request)

        gateway.engine.generate = generate

        async def agent(task, episode):
            ask = partial(chat(gateway, episode).completions.create, model="m")
            await ask(prompt="first")
            await asyncio.gather(ask(prompt="one"), ask(prompt="other"))
            await ask(prompt="last")
            return 1.0

        host = LocalHost(gateway.episodes, "http://gateway")
        player = AgentPlayer(host, CallableAgent(agent), AgentSettings())
        return await EpisodeGroupRunner(player).run_group(replace(LEASE, group_size=1), "w", 20.0)

    played = asyncio.run(scenario()).trajectories
    assert sorted(t.info["turn_order"] for t in played) == [[[0, 0]], [[1, 1]], [[1, 2]], [[3, 3]]]


def test_what_has_the_last_word_on_episodes_has_it_on_those_of_agents_that_did_not_fail(make_gateway):
    heard = []

    class Halves:
        async def apply(self, played, task, messages):
            heard.append((task.id, len(played), [one["content"] for one in messages]))
            return tuple(replace(one, reward=one.reward / 2) for one in played)

        async def close(self):
            pass

    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")

        async def agent(task, episode):
            user = {"role": "user", "content": "go"}
            await chat(gateway, episode).chat.completions.create(model="m", messages=[user])
            return 1.0 if task["episode_index"] else None

        host = LocalHost(gateway.episodes, "http://gateway")
        player = AgentPlayer(host, CallableAgent(agent), AgentSettings(max_running=1), (Halves(),))
        return await EpisodeGroupRunner(player).run_group(replace(LEASE, group_size=2), "w", 20.0)

    failed, played = asyncio.run(scenario()).trajectories
    assert (failed.failure, played.reward) == (FailureClass.ENVIRONMENT, 0.5)
    assert heard == [("t", 1, ["go", "yes"])]


def test_failed_episodes_are_single_trajectories_of_their_class(make_gateway):
    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")

        async def agent(task, episode):
            client = chat(gateway, episode)
            if task["episode_index"] == 1:
                gateway.engine.failure = InfrastructureError("gone")
            try:
                await client.completions.create(model="m", prompt="a", max_tokens=3)
                await client.completions.create(model="m", prompt="b", max_tokens=3)
            finally:
                gateway.engine.failure = None
            return 1.0 if task["episode_index"] == 0 else None

        return await play(gateway, agent, max_running=1)

    group = asyncio.run(scenario())
    failures = [t.failure for t in group.trajectories[:3]]
    assert failures == [None, FailureClass.INFRASTRUCTURE, FailureClass.ENVIRONMENT]
    assert [t.rollout for t in group.trajectories] == [0, 1, 2, 0]
    assert "reported no reward" in group.trajectories[2].error
    assert admit(group, 3, frozenset(), 256).outcome == "retry"


def test_an_episode_that_infrastructure_fails_is_played_again_with_a_key_of_its_own(
    make_gateway, monkeypatch
):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    keys = []

    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")

        async def agent(task, episode):
            keys.append((task["episode_index"], episode.key))
            first = task["episode_index"] == 1 and sum(index == 1 for index, _ in keys) == 1
            gateway.engine.failure = InfrastructureError("gone") if first else None
            await chat(gateway, episode).completions.create(model="m", prompt="a", max_tokens=3)
            return 1.0

        return await play(gateway, agent, max_running=1)

    group = asyncio.run(scenario())
    assert [t.failure for t in group.trajectories] == [None] * 3
    assert [t.info.get("attempts") for t in group.trajectories] == [None, 2, None]
    assert sorted(index for index, _ in keys) == [0, 1, 1, 2]
    assert len({key for _, key in keys}) == 4


def test_an_agents_time_starts_when_it_may_run_and_not_while_it_waits(make_gateway, monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.agents.gateway.agent_player.GRACE_S", 0.0)

    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")

        async def agent(task, episode):
            await asyncio.sleep(0.7)
            return 1.0

        host = LocalHost(gateway.episodes, "http://gateway")
        player = AgentPlayer(host, CallableAgent(agent), AgentSettings(max_running=1))
        # One after the other they take longer than the limit of one.
        return await EpisodeGroupRunner(player).run_group(replace(LEASE, group_size=5), "w", 3.0)

    group = asyncio.run(scenario())
    assert [(t.failure, t.reward) for t in group.trajectories] == [(None, 1.0)] * 5
    assert not any("attempts" in t.info for t in group.trajectories)


def test_the_ledger_takes_a_group_with_branches_and_refuses_one_that_lacks_an_episode(make_gateway):
    ledger = Ledger(":memory:", LedgerSettings(1, 1, 2, drop_no_signal=False))
    ledger.add_tasks([Task("t", "agent")])
    lease = ledger.lease("w")

    async def scenario():
        gateway = make_gateway(lambda prompt: "yes")
        version = lease.version
        gateway.engine.generate = at_version(gateway.engine.generate, version)

        async def agent(task, episode):
            client = chat(gateway, episode)
            for prompt in ("a", "b"):
                await client.completions.create(model="m", prompt=prompt, max_tokens=3)
            return float(task["episode_index"])

        host = LocalHost(gateway.episodes, "http://gateway")
        player = AgentPlayer(host, CallableAgent(agent), AgentSettings())
        return await EpisodeGroupRunner(player).run_group(lease, "w", 20.0)

    group = asyncio.run(scenario())
    assert [(t.episode_index, t.rollout) for t in group.trajectories] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    with pytest.raises(InputError, match="must hold 2 episodes, got 1"):
        ledger.put(replace(group, trajectories=group.trajectories[::2]))
    assert ledger.put(group).outcome == "ready"
    (taken,) = ledger.take(0).groups
    assert [t.rollout for t in decode_group(taken).trajectories] == [0, 1, 0, 1]


def at_version(generate, version):
    async def wrapped(request):
        return replace(await generate(request), versions=np.full(request.max_tokens, version, np.int32))

    return wrapped


def test_a_program_that_must_ask_and_did_not_has_failed_and_one_that_asked_had_been_started():
    assert outcome(Report(1.0, must_ask=True), counted(calls=1)).status is None
    ended = outcome(Report(1.0, must_ask=True), counted(calls=0, refusal="/v1/messages: 400: no"))
    assert (ended.status, ended.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
    assert ended.error == "agent: no call was ever answered; its last call was refused: /v1/messages: 400: no"
    unjudged = outcome(
        Report(problem="judge: no", end="unjudged"), counted(calls=2, cut="max_tokens_per_turn")
    )
    assert (unjudged.status, unjudged.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
    started = outcome(Report(0.0, problem="exit code 127: x", end="not started"), counted(calls=2))
    assert (started.status, started.failure) == (Status.FINISHED, None)


@pytest.mark.parametrize(
    ("config", "hosts"),
    [
        ({}, ("127.0.0.1", "127.0.0.1")),
        ({"gateway_host": "10.1.2.3"}, ("10.1.2.3", "10.1.2.3")),
        ({"gateway_host": "0.0.0.0", "gateway_advertise": "fd00::2"}, ("0.0.0.0", "fd00::2")),
    ],
)
def test_agents_are_told_the_host_that_a_gateway_listens_on_or_another_name_of_it(config, hosts):
    assert gateway_hosts(config) == hosts


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"gateway_advertise": "here.test"},
            r"gateway_advertise: nobody reaches .* set env\.config\.gateway_host",
        ),
        (
            {"gateway_host": "0.0.0.0", "gateway_advertise": "here.test/v1"},
            r"gateway_advertise: must be a host's name .* got 'here\.test/v1'",
        ),
        (
            {"gateway": "http://a", "gateway_host": "0.0.0.0"},
            r"gateway_host: must be left out where env\.config\.gateway",
        ),
    ],
)
def test_a_gateway_that_its_agents_would_not_find_is_refused_by_key(config, problem):
    with pytest.raises(ConfigError, match=problem):
        load_any_agent({"callable": "json:dumps", **config})
