"""Agent programs from container images; the engine is a real podman."""

import functools
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.agents.harness.file import harness_path, read_harness
from asyncrl.extensions.agents.harness.program import install
from asyncrl.sandbox.protocol import Mount
from asyncrl.types import FailureClass, Task
from tests.envs.harbor_tasks import TASKS, write_tasks
from tests.extensions.agents.harness.test_harness_episodes import Player, call, script
from tests.extensions.sandbox_images.engines import podman, podman_run, podman_store  # noqa: F401

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman's store of other owners is for root alone")
NAME = "localhost/agent:1"
START = '#!/opt/agent/bin/busybox sh\n. /opt/agent/settings\nexec python3 "$LOOP" "$@"\n'
"""Of the program: it names its interpreter, and what it reads, by their paths in the image."""


def build(folder, name=NAME, lines="", version="1"):
    """Build an image with a program in /opt/agent, of nothing but files of this machine."""
    if shutil.which("busybox") is None:
        pytest.skip("needs busybox")
    opt = folder / "opt" / "agent"
    for file, text in {
        "bin/agent": START,
        "settings": "LOOP=/opt/agent/lib/loop.py\n",
        "lib/loop.py": harness_path("bash").with_name("bash_loop.py").read_text(),
        "version": version,
    }.items():
        (opt / file).parent.mkdir(parents=True, exist_ok=True)
        (opt / file).write_text(text)
    (opt / "bin" / "agent").chmod(0o700)
    (opt / "settings").chmod(0o600)
    shutil.copy2(Path(shutil.which("busybox")).resolve(), opt / "bin" / "busybox")
    (opt / "bin" / "busybox").chmod(0o4755)
    (folder / "elsewhere").write_text("not of the program\n")
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY opt /opt\nCOPY elsewhere /srv/\n{lines}\n")
    podman_run("build", "-q", "-t", name, str(folder))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "harnesses"


def write(tmp_path, image=NAME, folder="/opt/agent", more=""):
    path = tmp_path / "own.toml"
    path.write_text(
        f'command = ["agent", "{{prompt}}"]\nprogram = {{ image = "{image}", folder = "{folder}"{more} }}\n'
    )
    return str(path)


def installed(path):
    return install(path, read_harness(path))


@pytest.fixture
def image(podman, tmp_path):  # noqa: F811
    build(tmp_path / "context")
    return NAME


@pytest.mark.usefixtures("image")
def test_the_folder_alone_is_kept_with_what_was_fetched_and_everyone_can_read_it(tmp_path, cache):
    found = installed(write(tmp_path))
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    assert found.mounts == (Mount(f"{folder}/files", "/opt/agent"),)
    assert (found.path, found.place) == ("/opt/agent/bin", "/opt/agent")
    assert sorted(entry.name for entry in folder.iterdir()) == ["files", "installed.json"]
    kept = folder / "files"
    modes = {name: (kept / name).stat().st_mode & 0o7777 for name in ("bin/agent", "settings", "bin/busybox")}
    assert modes == {"bin/agent": 0o755, "settings": 0o644, "bin/busybox": 0o755}
    said = json.loads((folder / "installed.json").read_text())
    known = podman_run("image", "inspect", "--format", "{{.Id}}", NAME).strip()
    assert said == {"image": NAME, "id": known, "folder": "/opt/agent", "engine": "podman"}
    assert podman_run("ps", "-a", "-q") == ""


@pytest.mark.usefixtures("image")
def test_another_content_under_the_same_tag_is_another_installation(tmp_path, cache):
    path = write(tmp_path)
    first = installed(path)
    assert installed(path) == first
    build(tmp_path / "second", version="2")
    second = installed(path)
    read = [Path(found.mounts[0].source, "version").read_text() for found in (first, second)]
    assert (read, len(list(cache.glob("*.lock")))) == (["1", "2"], 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("image")
def test_a_program_of_an_image_passes_the_whole_check(tmp_path, capsys):
    path = write(tmp_path)
    arguments = ["env", "check", "agent", "--slow-turn-s", "0.1", "--config", f'{{harness = "{path}"}}']
    assert main(arguments) == 0, capsys.readouterr().out
    assert "repairs a repository" in capsys.readouterr().out


@pytest.mark.usefixtures("image")
def test_a_program_of_one_image_works_in_the_image_of_its_task(renderer, tmp_path):
    tasks = write_tasks(tmp_path / "tasks", names=("links",))
    config = {"harness": write(tmp_path), "tasks": str(tasks), "task_config": {"bases": {"*": "host"}}}
    task = Task("links", "agent", 0, "train", {"folder": str(tasks / "links")})
    (played,) = Player(renderer, script(call(TASKS["links"].solve), "done"), **config).play(task)
    assert (played.reward, played.success) == (1.0, True), played.error


@pytest.mark.usefixtures("podman")
def test_a_program_that_would_hide_the_folder_of_its_task_is_no_outcome_of_the_policy(renderer, tmp_path):
    build(tmp_path / "context", lines="COPY opt/agent /app/agent")
    tasks = write_tasks(tmp_path / "tasks", names=("links",))
    path = write(tmp_path, folder="/app")
    config = {"harness": path, "tasks": str(tasks), "task_config": {"bases": {"*": "host"}}}
    task = Task("links", "agent", 0, "train", {"folder": str(tasks / "links")})
    (failed,) = Player(renderer, script("done"), **config).play(task)
    assert failed.failure is FailureClass.ENVIRONMENT
    assert "the program's folder /app and the task's /app are one inside the other" in failed.error


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize(
    ("lines", "folder", "words"),
    [
        ("", "/opt/agnt", r"/opt/agnt of \S+ is not there, got '/opt/agnt'; .* /opt has agent$"),
        ("", "/srv/elsewhere", r"/srv/elsewhere of \S+ is a file, .*/srv has elsewhere$"),
        ("", "/none/at/all", r"/none of \S+ is not there, .* / has .*opt.*srv"),
        ("COPY linked /opt/", "/opt/link", r"/opt/link of \S+ is a link to agent; name the folder itself"),
        (
            "COPY out /opt/agent/",
            "/opt/agent",
            r"links lead out of /opt/agent .*: /opt/agent/data -> ../../srv, /opt/agent/deep/python -> /usr/bin/py",
        ),
    ],
    ids=["another name", "a file", "no such top folder", "a link", "links that lead out"],
)
def test_a_folder_that_cannot_work_is_refused_with_what_is_there_and_nothing_is_kept(
    tmp_path, cache, lines, folder, words
):
    context = tmp_path / "context"
    (context / "out" / "deep").mkdir(parents=True)
    (context / "linked").mkdir()
    (context / "linked" / "link").symlink_to("agent")
    for name, target in {
        "data": "../../srv", "deep/python": "/usr/bin/python3", "deep/inner": "../bin/agent", "own": "/opt/agent/lib",
    }.items():  # fmt: skip
        (context / "out" / name).symlink_to(target)
    build(context, lines=lines)
    with pytest.raises(ConfigError, match=f"env.config.harness: program.folder: {words}"):
        installed(write(tmp_path, folder=folder))
    assert not list(cache.glob("*/installed.json")) and not list(cache.glob("*/root"))


@pytest.mark.usefixtures("podman")
def test_a_loader_that_this_machine_lacks_is_told(tmp_path, capsys):
    context = tmp_path / "context"
    context.mkdir()
    linked = Path(shutil.which("env")).resolve().read_bytes()
    own = b"/lib64/ld-linux-x86-64.so.2\0"
    if own not in linked:
        pytest.skip("needs a program for x86-64")
    (context / "foreign").write_bytes(linked.replace(own, b"/lib64/ld-other--x86-64.so.2\0", 1))
    (context / "foreign").chmod(0o755)
    build(context, lines="COPY foreign /opt/agent/bin/")
    installed(write(tmp_path))
    said = capsys.readouterr().err
    assert (
        "/opt/agent/bin/foreign of localhost/agent:1 needs /lib64/ld-other--x86-64.so.2, which is neither"
        in said
    )
    assert said.count(" needs ") == 1


@pytest.fixture
def registry(image, tmp_path, monkeypatch):
    """A registry on this machine that has the image: its address, the image's digest, and what was asked."""
    digest_file = tmp_path / "digest"
    podman_run("push", "-q", "--digestfile", str(digest_file), image, f"dir:{tmp_path}/stored")
    # The engine would know the digest.
    podman_run("rmi", "-f", image)
    digest, asked = digest_file.read_text().strip(), []

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self, body=True):
            asked.append(self.path)
            stored = tmp_path / "stored"
            if "/manifests/" in self.path:
                data = (stored / "manifest.json").read_bytes()
                kind = json.loads(data)["mediaType"]
            elif "/blobs/" in self.path:
                data, kind = (stored / self.path.rpartition(":")[2]).read_bytes(), "application/octet-stream"
            else:
                data, kind = b"{}", "application/json"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        do_HEAD = functools.partialmethod(do_GET, body=False)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    (tmp_path / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    yield address, digest, asked
    server.shutdown()
    server.server_close()


def test_a_digest_is_fetched_once_and_needs_no_engine_after_that(registry, tmp_path, cache, monkeypatch):
    address, digest, asked = registry
    path = write(tmp_path, image=f"{address}/agents/mine@{digest}")
    first = installed(path)
    assert Path(first.mounts[0].source, "version").read_text() == "1"
    assert asked and not [one for one in asked if "/manifests/" in one and not one.endswith(digest)], asked
    asked.clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert installed(path) == first and asked == []


def test_an_image_that_cannot_be_fetched_is_named_with_what_the_engine_said(registry, tmp_path):
    address, _, _ = registry
    wrong = f"{address}/agents/mine@sha256:{'0' * 64}"
    with pytest.raises(UnavailableError, match=rf"(?s)program.image: {wrong}: podman pull ended with status"):
        installed(write(tmp_path, image=wrong))
    with pytest.raises(UnavailableError, match=r"(?s)localhost/gone:1: podman image ended .*not known"):
        installed(write(tmp_path, image="localhost/gone:1"))


def test_an_engine_that_is_not_installed_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match=r"program.engine: docker is not installed here.* 'podman'"):
        installed(write(tmp_path, more=', engine = "docker"'))
