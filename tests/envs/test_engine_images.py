"""Task folders and records whose images a container engine builds or has; the engine is a real podman."""

import json
import os
import subprocess

import pytest

from asyncrl.env.scripted import to_action
from asyncrl.envs.swe.env import Swe
from asyncrl.envs.terminal.env import Terminal
from asyncrl.errors import ConfigError
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.test_terminal import DONE, shell, shown, write_task
from tests.extensions.sandbox_images.engines import podman, podman_store  # noqa: F401
from tests.extensions.sandbox_images.small_image import NAME

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman's store of other owners is for root alone")
PODMAN = {"*": "podman"}
STAGES = f"""FROM {NAME} AS tools
RUN mkdir -p /out && printf '#!/bin/sh\\necho tool\\n' > /out/tool && chmod a+x /out/tool
FROM {NAME}
COPY --from=tools /out/tool /usr/bin/tool
COPY data.txt /srv/task/
WORKDIR /srv/task
RUN useradd agent 2>/dev/null; chmod a+rwx .
USER agent
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))


def make(folder, name="t", **config):
    task = Task(name, "terminal", 0, "train", {"folder": str(folder / name)})
    return Terminal(task, folder=str(folder), **{"bases": PODMAN, **config})


@pytest.mark.usefixtures("podman")
def test_a_task_of_several_stages_and_another_user_is_played_in_what_the_engine_built(tmp_path):
    folder = write_task(
        tmp_path / "t",
        'test "$(tool)" = tool && grep -q seen /srv/task/data.txt && echo 1 > /logs/verifier/reward.txt',
        **{"Dockerfile": STAGES, "data.txt": "given\n"},
    )
    seen = play(make(folder), shell("tool; cat data.txt; pwd; echo seen >> data.txt"), DONE)
    assert shown(seen[0]) == ["tool\ngiven\n/work"]
    assert seen[-1].reward == 1.0
    assert play(make(folder), DONE)[-1].reward == 0.0


@pytest.mark.usefixtures("podman")
def test_a_task_that_names_its_image_is_played_in_it(tmp_path):
    folder = write_task(tmp_path / "t", "test -e /app/made")
    (folder / "t" / "task.toml").write_text(f'[environment]\ndocker_image = "{NAME}"\n')
    steps = play(make(folder), shell("ls /bin | tr '\\n' ' '; touch made"), DONE)
    assert "python" not in shown(steps[0])[0] and "setsid" in shown(steps[0])[0]
    assert steps[-1].reward == 1.0


def test_a_task_without_an_image_needs_no_engine(tmp_path, monkeypatch):
    folder = write_task(tmp_path / "t", "test -e /app/made")
    monkeypatch.setattr("asyncrl.extensions.sandbox_images.engine.shutil.which", lambda name: None)
    assert make(folder).image.needed is False


def test_lines_that_our_own_builds_do_not_follow_are_refused_with_what_follows_them(tmp_path):
    folder = write_task(tmp_path / "t", "true", **{"Dockerfile": STAGES, "data.txt": "given\n"})
    with pytest.raises(
        ConfigError, match=r'second stage is not followed; let a container engine .*"\*" = "podman"'
    ):
        make(folder, bases={"*": "host"})


def record(**fields):
    """A record whose repository is an image's /testbed."""
    return {
        "instance_id": "own__note-1", "repo": "own/note", "problem_statement": "Say hello.", "patch": "",
        "test_patch": "", "FAIL_TO_PASS": ["test_note.py::test_hello"], "PASS_TO_PASS": [], **fields,
    }  # fmt: skip


@pytest.mark.usefixtures("podman")
def test_a_record_is_played_in_the_image_that_it_names(tmp_path):
    (tmp_path / "Dockerfile").write_text(
        f"FROM {NAME}\nENV WHERE=image\nRUN mkdir /testbed && cd /testbed && git init -q && echo note > note.txt && "
        "git add -A && git -c user.name=t -c user.email=t@localhost commit -q -m start\n"
    )
    subprocess.run(["podman", "build", "-q", "-t", "localhost/note:1", str(tmp_path)], check=True)
    commit = "HEAD"
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps(record(image_name="localhost/note:1", base_commit=commit)) + "\n")
    env = Swe(
        Task("own__note-1", "swe", 0, "train"), records=str(records), bases=PODMAN, command_timeout_s=30.0
    )
    (step,) = play(env, shell("cat note.txt; echo $WHERE; git log --oneline | wc -l"))
    assert shown(step) == ["note\nimage\n1"]


def test_a_record_without_an_image_has_nothing_for_an_engine_to_fetch(tmp_path):
    records = tmp_path / "records.jsonl"
    bundle = tmp_path / "own__note.bundle"
    bundle.write_bytes(b"")
    records.write_text(json.dumps(record(base_commit="HEAD")) + "\n")
    with pytest.raises(ConfigError, match="podman has no image to fetch for 'swe'; name a folder"):
        Swe(Task("own__note-1", "swe", 0, "train"), records=str(records), bases=PODMAN)


def test_what_stands_for_an_image_is_refused_by_its_key_where_it_is_not_installed(tmp_path, monkeypatch):
    folder = write_task(tmp_path / "t", "true", Dockerfile=f"FROM {NAME}\n")
    monkeypatch.setattr("asyncrl.extensions.sandbox_images.engine.shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match=r"env\.config\.bases: docker is not installed here"):
        make(folder, bases={NAME: "docker"})


def test_an_oracle_of_a_folder_with_an_engine_is_its_script(tmp_path, podman):  # noqa: F811
    folder = write_task(
        tmp_path / "t", "test -e /app/made", Dockerfile=f"FROM {NAME}\nWORKDIR /app\nCOPY . .\n"
    )
    (folder / "t" / "solution").mkdir()
    (folder / "t" / "solution" / "solve.sh").write_text("#!/bin/bash\ntouch /app/made\n")
    env = make(folder)
    action = to_action(env.oracle([{"role": "user", "content": ""}]))
    assert play(env, action, DONE)[-1].reward == 1.0
