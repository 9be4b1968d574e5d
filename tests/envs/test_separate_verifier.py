"""Tests that have an environment of their own: which one, and what of the agent's session comes there."""

import asyncio
import io
import os
import tarfile

import pytest

from asyncrl.envs.terminal.artifacts import ARTIFACTS, Artifact, CollectHook, harmless, read_artifacts
from asyncrl.envs.terminal.env import Terminal
from asyncrl.envs.terminal.folder import read_folder
from asyncrl.envs.terminal.task_toml import Network, read_task_toml
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import MIB
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, shell, write_task
from tests.extensions.sandbox_images.engines import podman, podman_store  # noqa: F401
from tests.extensions.sandbox_images.small_image import NAME

OWN = '[verifier]\nenvironment_mode = "separate"\n'
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))


def make(folder, **config):
    return Terminal(
        Task("t", "terminal", 0, "train", {"folder": str(folder / "t")}), folder=str(folder), **config
    )


def write(tmp_path, tests, toml=OWN, dockerfile="", instruction="Do it in /app.", **files):
    folder = write_task(tmp_path / "tasks" / "t", tests, **files)
    (folder / "t" / "task.toml").write_text(toml)
    (folder / "t" / "instruction.md").write_text(instruction)
    if dockerfile:
        (folder / "t" / "tests" / "Dockerfile").write_text(dockerfile)
    return folder


def read(artifacts=(), **sections):
    return read_task_toml({"artifacts": list(artifacts), **sections}, "/tasks/t")


# -- what task.toml says ------------------------------------------------------------------------------------------


def test_an_environment_of_the_tests_has_its_own_sizes_variables_and_network():
    found = read(
        environment={"env": {"A": "agent"}, "memory_mb": 64, "network_mode": "no-network", "build_timeout_sec": 9.0},
        verifier={
            "timeout_sec": 7.0, "env": {"T": "tests"},
            "environment": {"env": {"V": "verifier"}, "memory_mb": 128, "workdir": "/srv", "docker_image": "i"},
        },
    )  # fmt: skip
    own = found.verifier
    assert (own.env, own.test_env, own.memory_bytes) == ({"V": "verifier"}, {"T": "tests"}, 128 * MIB)
    assert (own.workdir, own.docker_image, own.network) == ("/srv", "i", Network())
    assert (own.build_timeout_s, own.said_timeout_s) == (9.0, 7.0)
    assert (found.env, found.memory_bytes, found.network) == ({"A": "agent"}, 64 * MIB, Network("no-network"))


def test_tests_that_name_no_environment_have_another_one_like_the_agents():
    found = read(
        environment={"env": {"A": "agent"}, "memory_mb": 64, "network_mode": "no-network"},
        verifier={"environment_mode": "separate"},
    )
    assert (found.verifier.env, found.verifier.memory_bytes) == ({"A": "agent"}, 64 * MIB)
    assert found.verifier.network == Network("no-network")
    assert read().verifier is None and read(verifier={"environment_mode": "shared"}).verifier is None
    assert read(verifier={"environment": {}}).verifier is not None


def test_commands_of_a_collection_have_a_minute_unless_they_say_more():
    hooks = [{"command": "dump"}, {"command": "other", "service": "main", "timeout_sec": 5}]
    assert read(verifier={"collect": hooks}).collect == (CollectHook("dump", 60.0), CollectHook("other", 5.0))


def test_the_folder_of_logs_is_an_artifact_that_needs_no_entry():
    assert read_artifacts(["/app/out"]) == (Artifact(ARTIFACTS), Artifact("/app/out"))
    named = {"source": "/logs/artifacts/", "exclude": ["*.tmp"], "destination": "kept"}
    assert read_artifacts([named]) == (Artifact(ARTIFACTS, ("*.tmp",)),)


def test_an_entry_that_an_earlier_one_holds_is_not_taken_twice():
    assert read_artifacts(["/app/out", "/app/out/x"])[1:] == (Artifact("/app/out"),)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["out"], "source must be an absolute path without '..', got 'out'"),
        (["/app/../etc"], "source must be an absolute path without"),
        ([{"source": "/x", "service": "db"}], "service 'db' is not followed"),
        ([{"path": "/x"}], "an entry is a path, or a table with source"),
        ([{"source": "/x", "exclude": "y"}], "exclude must be a list of patterns"),
        (["/app/out/x", "/app/out"], "'/app/out/x' and '/app/out' overlap"),
        (
            [{"source": "/a", "destination": "d"}, {"source": "/b", "destination": "d"}],
            "'/a' and '/b' overlap",
        ),
        ([{"source": "/a", "exclude": ["*.c"]}, "/a/b"], "'/a' and '/a/b' overlap"),
        ("/app", "must be a list"),
    ],
)
def test_artifacts_that_cannot_be_followed_are_refused_with_the_reason(entries, problem):
    with pytest.raises(ConfigError, match=rf"terminal task /tasks/t: task\.toml: artifacts: {problem}"):
        read_task_toml({"artifacts": entries, "verifier": {"environment_mode": "separate"}}, "/tasks/t")


def test_an_artifact_that_no_session_can_hold_is_refused(tmp_path):
    folder = write(tmp_path, "true", 'artifacts = ["/etc/motd"]\n' + OWN)
    with pytest.raises(
        ConfigError, match=r"artifacts: '/etc/motd' is neither in /app nor in /logs/artifacts"
    ):
        read_folder(folder / "t")


# -- what comes over ----------------------------------------------------------------------------------------------

CHECK = """cd /app
test "$(cat out/a)" = made && test -x out/run && ! test -e out/b.tmp && ! test -e other && test "$(cat seed)" = seed &&
    test "$(cat /logs/artifacts/note)" = noted
"""


def test_the_artifacts_alone_come_into_an_environment_as_the_agent_found_it(tmp_path):
    toml = 'artifacts = [{source = "/app/out", exclude = ["*.tmp"]}]\n' + OWN
    folder = write(tmp_path, CHECK, toml, instruction="Write to /logs/artifacts/note.", seed="seed")
    env = make(folder)
    assert env.opening()[1]["content"] == "Write to /work/.artifacts/note."
    work = shell(
        "mkdir out; echo made > out/a; echo > out/b.tmp; echo > other; echo changed > seed",
        "printf '#!/bin/sh\\n' > out/run; chmod +x out/run; echo noted > .artifacts/note",
    )
    assert play(env, work, DONE)[-1].reward == 1.0
    assert play(make(folder), DONE)[-1].reward == 0.0


def test_what_an_agent_program_left_is_judged_in_the_tests_own_environment(tmp_path):
    folder = write(
        tmp_path, 'cd /app; test "$(cat out)" = made && ! test -e other', 'artifacts = ["/app/out"]\n' + OWN
    )  # fmt: skip

    async def judged(script):
        env = make(folder)
        try:
            async with await open_sandbox("auto", env.workspace().judge_spec) as box:
                await box.exec(["sh", "-c", script])
                return (await env.judge(box)).reward
        finally:
            await env.close()
            await LauncherClient.close_shared()

    assert asyncio.run(judged("echo made > out; echo > other")) == 1.0
    assert asyncio.run(judged("echo made > other")) == 0.0


def test_what_lies_at_an_artifacts_place_gives_way_to_it(tmp_path):
    folder = write(
        tmp_path, 'cd /app; test "$(ls box | tr -d "\\n")" = new && test "$(cat one)" = two',
        'artifacts = ["/app/box", "/app/one"]\n' + OWN, one="one", Dockerfile="FROM x\nWORKDIR /app\nCOPY one .\n"
        "COPY one box/old\n",
    )  # fmt: skip
    assert play(make(folder), shell("rm box/old; echo > box/new; echo two > one"), DONE)[-1].reward == 1.0


def test_the_whole_work_folder_may_be_an_artifact(tmp_path):
    folder = write(
        tmp_path, "cd /app; ! test -e seed && test -e made && test -e /logs/artifacts/x",
        'artifacts = ["/app"]\n' + OWN, seed="seed",
    )  # fmt: skip
    assert play(make(folder), shell("rm seed; touch made; touch .artifacts/x"), DONE)[-1].reward == 1.0


def test_a_collection_makes_an_artifact_of_what_the_session_holds_and_may_fail(tmp_path):
    hooks = "".join(
        f"[[verifier.collect]]\ncommand = {command!r}\n"
        for command in ("exit 3", "wc -l < /app/log > /app/count")
    )
    folder = write(tmp_path, 'test "$(cat /app/count)" = 2', 'artifacts = ["/app/count"]\n' + OWN + hooks)
    assert play(make(folder), shell("printf 'a\\nb\\n' > log"), DONE)[-1].reward == 1.0
    shared = write(tmp_path / "shared", 'test "$(cat /app/count)" = 2', "[verifier]\n" + hooks)
    assert play(make(shared), shell("printf 'a\\nb\\n' > log"), DONE)[-1].reward == 1.0


def test_a_file_in_the_place_of_a_folder_is_the_agents_doing(tmp_path):
    folder = write(
        tmp_path, "true", 'artifacts = ["/app/box/deep"]\n' + OWN, one="one",
        Dockerfile="FROM x\nWORKDIR /app\nCOPY one box/deep/x\n",
    )  # fmt: skip
    assert play(make(folder), shell("rm -r box/deep; echo > box/deep"), DONE)[-1].reward == 0.0


def test_links_that_lead_out_and_special_files_do_not_come_over():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, target in (
            ("./near", tarfile.SYMTYPE, "file"), ("./far", tarfile.SYMTYPE, "/tests/answer"),
            ("./up", tarfile.SYMTYPE, "../../x"), ("./pipe", tarfile.FIFOTYPE, ""), ("../over", tarfile.REGTYPE, ""),
            ("./file", tarfile.REGTYPE, ""), ("./sub", tarfile.DIRTYPE, ""),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6777
            tar.addfile(member, io.BytesIO())
    with tarfile.open(fileobj=io.BytesIO(harmless(out.getvalue()))) as tar:
        kept = {member.name: oct(member.mode) for member in tar}
    assert set(kept) == {"./near", "./file", "./sub"}
    assert (kept["./file"], kept["./sub"]) == ("0o755", "0o755")


def test_a_link_to_what_the_tests_know_is_not_read_for_the_agent(tmp_path):
    folder = write(tmp_path, "cmp /tests/answer /app/out", 'artifacts = ["/app/out"]\n' + OWN)
    (folder / "t" / "tests" / "answer").write_text("42\n")
    assert play(make(folder), shell("ln -s /tests/answer out"), DONE)[-1].reward == 0.0
    assert play(make(folder), shell("echo 42 > out"), DONE)[-1].reward == 1.0


# -- the tests' own image -----------------------------------------------------------------------------------------


def test_a_dockerfile_of_the_tests_without_run_lines_says_where_they_and_their_files_lie(tmp_path):
    folder = write(
        tmp_path, 'test "$PWD" = "$(cd /tests; pwd)" && cmp /app/given.txt /app/out && ! test -e /app/seed',
        'artifacts = ["/app/out"]\n' + OWN,
        "FROM debian:12\nWORKDIR /tests\nCOPY test.sh /tests/\nCOPY given.txt /app/\n", seed="seed",
    )  # fmt: skip
    (folder / "t" / "tests" / "given.txt").write_text("7\n")
    assert (
        play(make(folder), shell("test -e seed && ! test -e given.txt && echo 7 > out"), DONE)[-1].reward
        == 1.0
    )


def test_a_dockerfile_of_the_tests_that_copies_no_test_is_refused(tmp_path):
    folder = write(tmp_path, "true", OWN, "FROM debian:12\n")
    with pytest.raises(ConfigError, match=r"tests/Dockerfile copies no test\.sh to /tests"):
        make(folder)


@by_root
def test_the_tests_of_an_image_are_those_that_its_lines_have_made(tmp_path):
    folder = write(
        tmp_path, "placeholder", 'artifacts = ["/app/out"]\n' + OWN,
        "FROM debian:12\nCOPY . /tests\nRUN mkdir /srv/key && echo 42 > /srv/key/answer && "
        "echo 'cmp /srv/key/answer /app/out' > /tests/test.sh\n",
    )  # fmt: skip
    host = {"bases": {"*": "host"}}
    assert play(make(folder, **host), shell("ls /srv/key || echo 42 > out"), DONE)[-1].reward == 1.0
    assert play(make(folder, **host), DONE)[-1].reward == 0.0


@by_root
def test_an_image_of_the_tests_without_tests_fails_the_episode(tmp_path):
    folder = write(tmp_path, "true", OWN, "FROM debian:12\nRUN mkdir -p /srv/x\n")
    with pytest.raises(EnvironmentFailure, match=r"t \(verifier\): its image has no /tests"):
        play(make(folder, bases={"*": "host"}), DONE)


@by_root
@pytest.mark.usefixtures("podman")
def test_an_engine_builds_the_image_of_the_tests(tmp_path):
    folder = write(
        tmp_path, 'test "$WHOSE" = tests && grep -q made /app/out && echo 1 > /logs/verifier/reward.txt',
        'artifacts = ["/app/out"]\n' + OWN, f"FROM {NAME}\nENV WHOSE=tests\nCOPY . /tests\n",
        Dockerfile=f"FROM {NAME}\nWORKDIR /app\n",
    )  # fmt: skip
    podman_builds = {"bases": {"*": "podman"}}
    assert play(make(folder, **podman_builds), shell("echo made > out"), DONE)[-1].reward == 1.0
    assert play(make(folder, **podman_builds), DONE)[-1].reward == 0.0


def test_tests_in_an_image_that_nothing_fetches_are_refused(tmp_path):
    folder = write(tmp_path, "true", '[verifier.environment]\ndocker_image = "tests:1"\n')
    with pytest.raises(
        ConfigError, match=r"verifier\.environment\.docker_image holds the tests; say in env\.config\.bases"
    ):
        make(folder)
