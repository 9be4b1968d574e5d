"""A real container engine for tests, with a store of its own: fixtures to import."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.extensions.sandbox_images.small_image import NAME, write_context


@pytest.fixture(scope="session")
def podman_store(tmp_path_factory):
    """Variables under which `podman` has its own store, with the image `NAME` in it."""
    if shutil.which("podman") is None:
        pytest.skip("needs podman")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "containers.conf").write_text("[containers]\ndefault_ulimits = []\n")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    # With chroot, builds need no rights that a test machine may lack.
    variables = {
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    made = subprocess.run(
        ["podman", "build", "-q", "-t", NAME, str(write_context(folder / "small"))],
        env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"podman cannot build here: {made.stderr[-300:]}")
    yield variables
    subprocess.run(
        ["podman", "rmi", "-a", "-f"], env=os.environ | variables, capture_output=True, check=False
    )


@pytest.fixture
def podman(podman_store, monkeypatch):
    """Podman as the code under test finds it."""
    for name, value in podman_store.items():
        monkeypatch.setenv(name, value)


def podman_run(*words: str) -> str:
    return subprocess.run(["podman", *words], capture_output=True, text=True, check=True).stdout
