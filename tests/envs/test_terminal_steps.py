"""Task folders of several steps: what is asked when, what goes on between steps, and what each earns."""

import asyncio
import os

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.scripted import to_action
from asyncrl.envs.terminal.env import Terminal
from asyncrl.envs.terminal.folder import find_folders, read_folder
from asyncrl.envs.tools import say
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.base import Judge
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import SandboxSpec
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Status, Task
from tests.envs.harbor_steps import STEPS, HarborStep, HarborSteps, full, half, write_steps
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, shell, shown
from tests.extensions.agents.harness.test_harness_episodes import Player, call, script


def task_of(folder, name):
    return Task(name, "terminal", 0, "train", {"folder": str(folder / name)})


def make(folder, name, **config):
    return Terminal(task_of(folder, name), folder=str(folder), **config)


def played(env, policy):
    """Play what a policy says of the conversation, to the end; return the steps."""

    async def whole():
        steps = []
        try:
            messages = list(await env.reset() if env.image.needed else env.reset())
            while not steps or not steps[-1].done:
                said = policy(messages)
                steps.append(await env.step(to_action(said)))
                messages += [said, *steps[-1].messages]
            return steps
        finally:
            await env.close()
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def solved(env):
    """Play what the solutions say."""
    return played(env, env.oracle)


def idle(env):
    """Play nothing."""
    return played(env, lambda messages: say("done"))


def write(folder, monkeypatch, toml="", check="", **steps):
    """Write one task of these steps, `t`."""
    monkeypatch.setitem(STEPS, "t", HarborSteps(steps, 0.0, 0.0, toml, check))
    return write_steps(folder, names=("t",))


def parts(steps, prefix="step_"):
    return {
        name: value for step in steps for name, value in step.components.items() if name.startswith(prefix)
    }


@pytest.mark.parametrize("name", STEPS)
def test_the_reward_is_what_the_strategy_makes_of_those_of_the_steps(tmp_path, name):
    folder = write_steps(tmp_path / "tasks", names=(name,))
    steps = solved(make(folder, name))
    assert sum(step.reward for step in steps) == pytest.approx(STEPS[name].oracle)
    assert steps[-1].success is (STEPS[name].oracle == 1)
    assert sum(step.reward for step in idle(make(folder, name))) == STEPS[name].nop


def test_each_step_is_asked_for_when_the_one_before_it_is_done_and_pays_the_turn_that_ended_it(tmp_path):
    folder = write_steps(tmp_path / "tasks", names=("mean", "gated", "final"))
    steps = solved(make(folder, "mean"))
    asked = [message["content"] for step in steps for message in step.messages if message["role"] == "user"]
    assert asked == ["Do step two in /work.", "Do step three in /work."]
    # A call and a turn without one for each.
    assert [step.reward for step in steps] == pytest.approx([0, 1 / 3, 0, 0.5 / 3, 0, 1 / 3])
    assert parts(steps) == {"step_1": 1.0, "step_2": 0.5, "step_3": 1.0}
    assert sum(step.components.get("tests_passed", 0.0) for step in steps) == pytest.approx(2.5 / 3)
    # The third is not played: the mean is that of two, and the turn that ended the play pays the rest of it.
    gated = solved(make(folder, "gated"))
    assert [step.reward for step in gated] == pytest.approx([0, 1 / 3, 0, 0.75 - 1 / 3])
    assert parts(gated) == {"step_1": 1.0, "step_2": 0.5}
    assert [step.reward for step in solved(make(folder, "final"))] == [0, 0, 0, 1]


def test_files_go_on_and_what_ran_and_the_tests_do_not(tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("true", full("test -e /app/kept"), tests={"hidden": "a secret of the tests\n"}),
        two=HarborStep("true", full("test -e /app/kept")),
    )  # fmt: skip
    look = (
        "ls -A / /tests /logs/verifier 2>&1; grep -rls 'secret of the tests' / --include=hidden; "
        "echo -$X-; ls /work /tmp; pgrep sleep"
    )
    steps = play(
        make(folder, "t"), shell("X=1; touch kept /tmp/too; (setsid sleep 479 &)"), DONE, shell(look), DONE
    )
    (seen,) = shown(steps[2])
    assert "/tests/hidden" not in seen and "'/tests': No such file" in seen
    assert "--\n/tmp:\ntoo\n\n/work:\nkept\n(exit status 1)" in seen, seen
    assert sum(step.reward for step in steps) == 1.0 and steps[-1].done


def test_a_step_whose_tests_write_nothing_does_not_get_the_reward_of_the_one_before(tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch, one=HarborStep("", full("true")), two=HarborStep("", "exit 1")
    )
    steps = play(make(folder, "t"), DONE, DONE)
    assert parts(steps) == {"step_1": 1.0, "step_2": 0.0}


def test_the_turn_limit_is_each_steps_and_ends_it_with_what_is_there(tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("", full("test -e /app/a")), two=HarborStep("", full("test -e /app/b")),
    )  # fmt: skip
    env = make(folder, "t", max_turns=2)
    assert env.max_turns == 4
    steps = play(env, shell("true"), shell("touch a"), shell("true"), shell("true"))
    assert [message["role"] for message in steps[1].messages] == ["tool", "user"]
    assert [(step.done, step.reward) for step in steps] == [(False, 0), (False, 0.5), (False, 0), (True, 0)]
    assert steps[-1].truncated


def test_a_setup_that_the_agent_has_spoiled_counts_as_a_step_that_earned_nothing(tmp_path, monkeypatch):
    two = HarborStep("", full("true"), workdir={"setup.sh": "cat /app/source > copy\n"})
    folder = write(tmp_path / "tasks", monkeypatch, one=HarborStep("", full("true")), two=two)
    steps = play(make(folder, "t"), shell("rm -rf source"), DONE)
    assert (steps[-1].done, sum(step.reward for step in steps), parts(steps)) == (True, 0.5, {"step_1": 1.0})
    good = play(make(folder, "t"), shell("echo x > source"), DONE, shell("cat copy"), DONE)
    assert shown(good[2]) == ["x"] and sum(step.reward for step in good) == 1.0


def test_a_setup_that_fails_before_the_agent_has_done_anything_is_the_tasks(tmp_path, monkeypatch):
    one = HarborStep("", full("true"), workdir={"setup.sh": "echo no luck >&2; exit 3\n"})
    folder = write(tmp_path / "tasks", monkeypatch, one=one)
    with pytest.raises(EnvironmentFailure, match=r"task t: step one: its files and setup.sh: no luck"):
        play(make(folder, "t"), DONE)


def test_tests_of_one_step_may_have_a_session_of_their_own_with_the_tasks_artifacts_and_the_steps(
    tmp_path, monkeypatch
):
    separate = 'artifacts = ["/app/b"]\n[steps.verifier]\nenvironment_mode = "separate"'
    folder = write(
        tmp_path / "tasks", monkeypatch, 'artifacts = ["/app/a"]\n',
        one=HarborStep("", half("test -e /app/a", "test -e /app/c")),
        two=HarborStep("", half("test -e /app/a -a -e /app/b", "test ! -e /app/c"), separate),
    )  # fmt: skip
    steps = play(make(folder, "t"), shell("touch a b c"), DONE, DONE)
    assert parts(steps) == {"step_1": 1.0, "step_2": 1.0}


def test_hooks_of_the_task_come_before_the_steps(tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch, '[[verifier.collect]]\ncommand = "echo task >> /app/log"\n',
        one=HarborStep("", full("true"), '[[steps.verifier.collect]]\ncommand = "echo step >> /app/log"'),
        two=HarborStep("", full('test "$(tr "\\n" - < /app/log)" = task-step-task-')),
    )  # fmt: skip
    assert parts(play(make(folder, "t"), DONE, DONE)) == {"step_1": 1.0, "step_2": 1.0}


def test_folders_of_steps_are_found_and_pass_the_check(tmp_path):
    folder = write_steps(tmp_path / "tasks", names=("final", "mean"))
    assert [path.name for path in find_folders(folder)] == ["final", "mean"]
    work = read_folder(folder / "mean")
    assert [step.name for step in work.steps] == ["one", "two", "three"]
    assert make(folder, "mean").least_step_s() == make(folder, "final").least_step_s()


def test_a_task_of_steps_passes_the_check_of_environments(tmp_path, monkeypatch):
    steps = {name: HarborStep(f"touch /app/{name}", full(f"test -e /app/{name}")) for name in ("one", "two")}
    folder = write(tmp_path / "tasks", monkeypatch, **steps)
    (folder / "t").rename(folder / "t-heldout")
    (folder / "t-heldout" / "steps" / "one" / "instruction.md").write_text("Do another step in /app.\n")
    write_steps(folder, names=("t",))
    assert [f for f in check_env("terminal", {"folder": str(folder)}, num_tasks=1) if not f.ok] == []


def test_a_step_without_tests_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "tasks", monkeypatch, one=HarborStep("", full("true")), two=HarborStep(""))
    with pytest.raises(
        ConfigError, match=r"terminal task .*t: tests/ or steps/two/tests/ must hold test.sh or"
    ):
        make(folder, "t")


def test_tests_in_an_image_of_their_own_are_refused_in_a_task_of_steps(tmp_path, monkeypatch):
    separate = '[steps.verifier]\nenvironment_mode = "separate"'
    one = HarborStep("", full("true"), separate, tests={"Dockerfile": "FROM x\nCOPY . /tests\n"})
    folder = write(tmp_path / "tasks", monkeypatch, one=one)
    with pytest.raises(ConfigError, match=r"steps\.one: tests in an image of their own, by tests/Dockerfile"):
        make(folder, "t")


def test_a_judge_without_folders_of_its_own_takes_the_tests_out_of_the_session_again():
    async def whole():
        box = await open_sandbox("auto", SandboxSpec("bash"))
        try:
            judge = Judge(box)
            await judge.write({"deep/test.sh": b"x"})
            before = await box.exec(["ls", "-A"])
            await judge.clear()
            return before.text, (await box.exec(["ls", "-A"])).text
        finally:
            await box.stop()
            await LauncherClient.close_shared()

    before, after = asyncio.run(whole())
    assert before.startswith(".verifier-") and after == ""


class Scripted:
    """Says the turns one after the other."""

    def __init__(self, renderer, *turns):
        self.said = iter([renderer.assistant({"role": "assistant", "content": turn}) for turn in turns])

    async def generate(self, request):
        ids = next(self.said)
        return Generated(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop")


def test_a_trajectory_has_the_reward_of_each_step_at_the_turn_that_ended_it(renderer, tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("", full("test -e /app/a")), two=HarborStep("", half("true", "test -e /app/b")),
        three=HarborStep("", full("test -e /app/a")),
    )  # fmt: skip
    said = Scripted(renderer, call("touch a"), "done", "done", call("true"), "done")
    settings = EpisodeSettings(
        Limits(max_turns=0, max_tokens_per_turn=200, max_tokens=4000),
        env_config={"folder": str(folder)},
        seed=7,
    )
    player = ChatPlayer(said, LocalEnvs(), renderer, parse_hermes, settings, [])

    async def whole():
        try:
            return await player.play(EpisodeRequest(task_of(folder, "t"), 0, "e"))
        finally:
            await LauncherClient.close_shared()

    (trajectory,) = asyncio.run(whole())
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0, 1 / 3, 0.5 / 3, 0, 1 / 3])
    assert (trajectory.reward, trajectory.status) == (pytest.approx(2.5 / 3), Status.FINISHED)


# -- agent programs ---------------------------------------------------------------------------------------------


def by_step(**turns):
    """Say the turns of a step one after the other, by how many results its own conversation shows."""

    def reply(prompt):
        (name,) = (name for name in turns if f"Do step {name} in" in prompt)
        return script(*turns[name])(prompt)

    return reply


def test_a_program_is_started_for_each_step_in_the_folder_that_it_left(renderer, tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("", full("grep -q 1 /app/count"), workdir={"given": "x", "setup.sh": "cp given first\n"}),
        two=HarborStep(
            "", half("grep -q 2 /app/count", "test -e /app/more"), workdir={"setup.sh": "cp count second\n"}
        ),
        three=HarborStep("", full("grep -q 3 /app/count")),
    )  # fmt: skip
    reply = by_step(
        one=(call("cat first > count; echo 1 >> count"), "done"),
        two=(call("cat second >> count; echo 2 >> count"), "done"),
        three=(call("grep -c 1 count && echo 3 >> count; ls"), "done"),
    )
    player = Player(renderer, reply, timeout_s=420.0, harness="bash", tasks=str(folder))
    trajectories = player.play(task_of(folder, "t"))
    (first, *_) = trajectories
    assert first.error == "" and len(trajectories) == 3
    assert sum(t.reward for t in trajectories[:1]) == pytest.approx(2.5 / 3)
    assert first.components == pytest.approx(
        {"tests_passed": 2.5 / 3, "step_1": 1.0, "step_2": 0.5, "step_3": 1.0, "exit_code": 0.0}
    )
    assert first.status is Status.FINISHED and all(np.any(t.loss_mask) for t in trajectories)


def test_a_program_is_not_asked_again_below_the_least_reward(renderer, tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("", half("true", "test -e /app/a"), "min_reward = 0.6"), two=HarborStep("", full("true")),
    )  # fmt: skip
    player = Player(
        renderer, by_step(one=("done",), two=("done",)), timeout_s=300.0, harness="bash", tasks=str(folder)
    )
    (trajectory,) = player.play(task_of(folder, "t"))
    assert (trajectory.reward, trajectory.success) == (0.5, False)


def test_a_program_that_cannot_start_fails_the_episode_at_the_first_step(renderer, tmp_path, monkeypatch):
    folder = write(
        tmp_path / "tasks", monkeypatch, one=HarborStep("", full("true")), two=HarborStep("", full("true"))
    )
    own = tmp_path / "own.toml"
    own.write_text('command = ["no-such-program", "{prompt}"]\n')
    player = Player(renderer, by_step(one=("done",)), timeout_s=300.0, harness=str(own), tasks=str(folder))
    (trajectory,) = player.play(task_of(folder, "t"))
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)


@pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
def test_steps_are_played_in_the_image_of_their_task(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = write(
        tmp_path / "tasks", monkeypatch,
        one=HarborStep("cp made /app/a", full("cmp -s /app/a /app/made"), workdir={"setup.sh": "test -e /app/made\n"}),
        two=HarborStep("cp a b", full("cmp -s /app/b /app/made")),
    )  # fmt: skip
    with open(folder / "t" / "environment" / "Dockerfile", "a") as file:
        file.write("RUN date > made\n")
    assert sum(step.reward for step in solved(make(folder, "t", bases={"*": "host"}))) == 1.0
