"""Images that a container engine builds, unpacked for our own jail; the engine is a real podman."""

import asyncio
import dataclasses
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.sandbox_images import store
from asyncrl.extensions.sandbox_images.dockerfile import Context, for_engine
from asyncrl.extensions.sandbox_images.engine import check_engine
from asyncrl.extensions.sandbox_images.jail import BuildLimits
from asyncrl.extensions.sandbox_images.store import image
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import MIB
from tests.extensions.sandbox_images.engines import podman, podman_run, podman_store  # noqa: F401
from tests.extensions.sandbox_images.small_image import NAME

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman's store of other owners is for root alone")
STAGES = f"""
FROM {NAME} AS maker
RUN mkdir -p /out && echo made > /out/file
FROM {NAME}
SHELL ["/bin/bash", "-c"]
COPY --from=maker /out/file /srv/file
COPY here.sh .dockerignore /app/
WORKDIR /app
ENV COLOR=red
RUN echo "$COLOR $(( 2 ** 3 ))" > told && chmod 1777 /tmp
USER agent
RUN id -u > /tmp/owner
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


def build(text, files=None, limits=None):
    async def whole():
        try:
            recipe = for_engine(text, Context(files or {}, frozenset({"here.sh"})))
            return await image(recipe, "podman", limits or BuildLimits())
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def read(path):
    return Path(path).read_text()


def work_files(made):
    with tarfile.open(made.work) as packed:
        return {m.name.removeprefix("./"): m for m in packed if m.isfile()}


@pytest.mark.usefixtures("podman")
def test_an_engine_follows_stages_users_shells_and_files_of_other_stages():
    made = build(STAGES, {"here.sh": b"echo here\n", ".dockerignore": b"nothing\n"})
    (target, folders) = made.root.layers[0]
    assert (target, made.root.workdir) == ("/", "/app")
    below = folders[0]
    assert read(f"{below}/srv/file") == "made\n"
    assert read(f"{below}/tmp/owner") == "1000\n"
    assert dict(made.env)["COLOR"] == "red"
    files = work_files(made)
    assert set(files) == {"here.sh", ".dockerignore", "told"}
    assert files["here.sh"].mode & 0o111
    assert read(f"{below}/app/told") == "red 8\n"


@pytest.mark.usefixtures("podman")
def test_an_image_is_built_once_and_nothing_of_the_build_is_left_in_the_engine(cache, monkeypatch):
    made = build(f"FROM {NAME}\nWORKDIR /app\nRUN date +%N > x\n")
    asked = []
    monkeypatch.setattr(store, "unpack", lambda *given: asked.append(given))
    assert build(f"FROM {NAME}\nWORKDIR /app\nRUN date +%N > x\n") == made
    assert asked == []
    assert podman_run("ps", "-a", "-q") == ""
    (folder,) = (one for one in cache.iterdir() if one.is_dir())
    assert not (folder / "context").exists()


@pytest.mark.usefixtures("podman")
@pytest.mark.parametrize(
    ("lines", "limits", "reason"),
    [
        ("RUN echo so it goes; exit 7", {}, "podman build ended with status .*so it goes.*exit status 7"),
        ("RUN sleep 321", {"timeout_s": 3.0}, "podman was not done within the build's time"),
        ("RUN head -c 40000000 /dev/zero > /big", {"disk_bytes": 1 * MIB}, "than fits"),
    ],
    ids=["fails", "hangs", "too large"],
)
def test_a_build_that_fails_says_why_and_leaves_nothing_running(cache, lines, limits, reason):
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=f"(?s){reason}"):
        build(f"FROM {NAME}\n{lines}\n", limits=dataclasses.replace(BuildLimits(), **limits))
    assert time.monotonic() - began < 120
    assert subprocess.run(["pgrep", "-f", "sleep 321"], capture_output=True, check=False).stdout == b""
    assert [one for one in cache.iterdir() if one.is_dir()] == []


def test_an_engine_that_is_not_installed_is_named_with_what_else_may_stand_there(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ConfigError, match=r"env\.config\.bases: podman is not installed here; .* name a folder"
    ):
        check_engine("podman", "env.config.bases")
