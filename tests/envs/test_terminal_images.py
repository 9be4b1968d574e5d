"""Task folders with RUN lines: built once for each content, played in what was built, failing without a reward."""

import asyncio
import json
import os
import time

import pytest

from asyncrl.env.protocol import Action
from asyncrl.env.scripted import to_action
from asyncrl.envs.terminal.env import Terminal
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.sandbox_images import store
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.together import together
from asyncrl.types import Task
from tests.envs.harbor_tasks import TASKS, write_tasks
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, shell, shown, write_task

HOST = {"*": "host"}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def make(folder, name, **config):
    return Terminal(
        Task(name, "terminal", 0, "train", {"folder": str(folder / name)}),
        folder=str(folder),
        **{"bases": HOST, **config},
    )


def write_images(folder, **runs):
    """Write a task folder for each name, whose Dockerfile has this line."""
    for name, line in runs.items():
        write_task(folder / name, "test -e /app/made", Dockerfile=f"FROM debian:12\nWORKDIR /app\n{line}\n")
    return folder


def solved(folder, name, **config):
    env = make(folder, name, **config)
    return play(env, to_action(env.oracle([{"role": "user", "content": ""}])), DONE)[-1]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_with_run_lines_is_solved_by_its_oracle_and_not_by_doing_nothing(tmp_path, name):
    folder = write_tasks(tmp_path / "tasks", names=(name,))
    assert solved(folder, name).reward == 1.0
    assert play(make(folder, name), DONE)[-1].reward == 0.0


def test_an_image_is_built_once_and_sessions_do_not_share_what_they_write(tmp_path, cache):
    folder = write_images(tmp_path / "tasks", t="RUN date +%N > stamp; echo x >> /srv/built")

    async def four():
        envs = [make(folder, "t") for _ in range(4)]
        try:
            await together(env.reset() for env in envs)
            steps = await together(env.step(shell("cat stamp /srv/built; echo y >> stamp")) for env in envs)
            return [shown(step)[0] for step in steps]
        finally:
            await together(env.close() for env in envs)
            await LauncherClient.close_shared()

    texts = asyncio.run(four())
    assert len(set(texts)) == 1 and texts[0].endswith("\nx")
    # Another process, which has no memory of it, finds it.
    assert play(make(folder, "t"), shell("cat stamp /srv/built"))[-1].messages[0]["content"] == texts[0]
    assert len(list(cache.glob("*/image.json"))) == 1


def test_a_change_of_the_dockerfile_a_file_or_its_mode_is_another_image(tmp_path, cache):
    folder = write_images(
        tmp_path / "tasks", t="COPY tool /app/\nRUN ls -l tool > listed; cat tool >> listed"
    )
    tool = folder / "t" / "environment" / "tool"
    seen = []
    for text, mode in (("one", 0o644), ("two", 0o644), ("two", 0o755)):
        tool.write_text(text)
        tool.chmod(mode)
        seen.append(
            play(make(folder, "t"), shell("cut -c1-10 listed; cat listed | tail -n 1"))[-1].messages[0][
                "content"
            ]
        )
    assert [text.split("\n")[0] for text in seen] == ["-rw-r--r--", "-rw-r--r--", "-rwxr-xr-x"]
    assert len(list(cache.glob("*/image.json"))) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "RUN echo its last words; exit 3",
            "'RUN echo its last words; exit 3' ended with status 3.*its last words",
        ),
        ("RUN sleep 60", "'RUN sleep 60' was not done within the build's time"),
    ],
)
def test_a_build_that_fails_or_hangs_fails_its_episode_with_the_reason_and_no_reward(
    tmp_path, cache, line, reason
):
    folder = write_images(tmp_path / "tasks", t=line)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(InfrastructureError, match=f"(?s){reason}"):
            play(make(folder, "t", build_timeout_s=3.0), DONE)
    # The second time it is known, and not waited for.
    assert time.monotonic() - started < 3.0
    assert not list(cache.glob("*/image.json")) and not list(cache.glob("*.partial"))


def test_run_lines_reach_no_host_that_is_not_named_and_the_failure_says_so(tmp_path):
    script = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    folder = write_images(tmp_path / "tasks", t=f'RUN python3 -c "{script}"')
    with pytest.raises(InfrastructureError, match="RUN lines reach no host unless build_hosts names it"):
        play(make(folder, "t"), DONE)


def test_a_build_sees_no_file_of_this_machine_but_its_programs(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = write_images(
        tmp_path / "tasks",
        t=f"RUN ! cat {tmp_path}/secret && ls /home /root > /srv/seen && ! echo h > /proc/sysrq-trigger",
    )
    assert "secret" not in play(make(folder, "t"), shell("cat /srv/seen"))[-1].messages[0]["content"]


def test_56_episodes_end_while_eight_builds_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "YOUNG_S", 2.0)
    good = {f"good{n}": f"RUN echo {n} > number" for n in range(7)}
    hanging = {f"hang{n}": f"RUN echo {n} && sleep 3600" for n in range(8)}
    folder = write_images(tmp_path / "tasks", **hanging, **good)

    async def episode(name, ended):
        env = make(folder, name, build_timeout_s=90.0)
        try:
            await env.reset()
            step = await env.step(shell("cat number; touch made"))
            end = await env.step(DONE)
            ended[name].append((step.messages[0]["content"], end.reward))
        except InfrastructureError as error:
            ended[name].append(str(error))
        finally:
            await env.close()

    async def all_of_them():
        ended = {name: [] for name in (*hanging, *good)}
        try:
            stuck = [asyncio.create_task(episode(name, ended)) for name in hanging]
            await asyncio.sleep(0.5)
            async with asyncio.timeout(85):
                await together(episode(name, ended) for name in good for _ in range(8))
            before = {name: list(ended[name]) for name in hanging}
            await asyncio.wait(stuck)
            return before, ended
        finally:
            await LauncherClient.close_shared()

    before, ended = asyncio.run(all_of_them())
    assert before == {name: [] for name in hanging}
    assert {name: ended[name] for name in good} == {f"good{n}": [(str(n), 1.0)] * 8 for n in range(7)}
    for name in hanging:
        assert len(ended[name]) == 1 and "was not done within the build's time" in ended[name][0]


LOOKS = (
    "git log --all --oneline",
    "git show origin/main:calc.py",
    "git show solved; git show fix",
    "git reflog --all; ls .git/logs",
    "git fsck --unreachable --no-reflogs --lost-found",
    "git cat-file --batch-all-objects --batch-check --buffer | cut -d' ' -f1 | xargs -n1 git cat-file -p",
    "find .git/objects -type f -name '??????????????????????????????????????' | xargs -rn1 python3 -c "
    "'import sys, zlib; print(zlib.decompress(open(sys.argv[1], \"rb\").read()))'",
    "grep -rs 'a + b' / --include='*' --exclude-dir=proc --exclude-dir=usr --exclude-dir=dev | head",
    "git fetch; git stash list; git worktree list; git remote -v",
    "pip download calc",
)


def test_an_agent_that_asks_the_repository_for_its_future_gets_nothing(tmp_path):
    folder = write_tasks(tmp_path / "tasks", names=("history",))
    (step,) = play(make(folder, "history", command_timeout_s=30.0, shown_characters=20_000), shell(*LOOKS))
    texts = shown(step)
    assert texts[0].endswith("start") and len(texts[0].splitlines()) == 1
    assert not [text for text in texts if "a + b" in text or "the fix" in text]


def test_a_repository_keeps_its_future_where_that_is_the_task(tmp_path):
    folder = write_tasks(tmp_path / "tasks", names=("history",))
    (step,) = play(make(folder, "history", keep_git_history=True), shell("git log --all --oneline"))
    assert len(shown(step)[0].splitlines()) == 2 and "the fix" in shown(step)[0]


def test_run_lines_without_a_known_base_or_in_another_backend_are_refused(tmp_path):
    folder = write_images(tmp_path / "tasks", t="RUN true")
    with pytest.raises(ConfigError, match=r"say in env\.config\.bases what stands for 'debian:12'"):
        make(folder, "t", bases={"ubuntu:24.04": "host"})
    with pytest.raises(ConfigError, match="RUN lines need one of auto, bubblewrap, got 'landlock'"):
        make(folder, "t", sandbox="landlock")
    with pytest.raises(InfrastructureError, match="is no folder with an unpacked root file system"):
        play(make(folder, "t", bases={"debian:12": str(tmp_path / "none")}), DONE)
    assert play(make(folder, "t", bases={}, ignore_run=True), Action("done"))[-1].done


def test_an_agents_program_gets_the_image_with_links_and_modes(tmp_path):
    folder = write_tasks(tmp_path / "tasks", names=("links",))
    env = make(folder, "links")

    async def prepared():
        try:
            await env.prepare()
            return env.workspace()
        finally:
            await env.close()
            await LauncherClient.close_shared()

    work = asyncio.run(prepared())
    assert work.judge_spec.root.workdir == "/app" and json.dumps(dict(work.judge_spec.env)).count("/usr/bin")
    assert b"current" in work.packed and not work.files
