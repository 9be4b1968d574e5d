"""scripts/install.sh says what is missing before it downloads anything: here with stubs of what it asks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_locks import locked

SCRIPT = Path(__file__).parent.parent / "scripts" / "install.sh"
TOOLS = ("bash", "dirname", "head", "sed", "g++", "make")
BANNER = "| NVIDIA-SMI {0}   Driver Version: {0}   CUDA Version: {1} |"
DRIVERS = {"550": ("550.54.15", "12.4"), "570": ("570.86.10", "12.8"), "580": ("580.65.06", "13.0")}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return what runs the installer where there is what is named, and no network, pip or .venv; it then returns the
    exit code and what was said."""

    def of(kind="gpu", driver="580", python="3.12", missing=(), said=None, word="check"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for tool in TOOLS:
            if tool not in missing and not (folder / tool).exists():
                (folder / tool).symlink_to(shutil.which(tool))
        if driver is not None:
            banner = said if said is not None else BANNER.format(*DRIVERS[driver])
            stub(folder / "nvidia-smi", f"echo {banner!r}; exit {0 if said is None else 9}")
        if python is not None:
            stub(
                folder / "python3",
                PYTHON.format(python, *(int(part in missing) for part in ("venv", "Python.h"))),
            )
        env = {"PATH": str(folder), "HOME": str(tmp_path)}
        done = subprocess.run([SCRIPT, kind, word], env=env, capture_output=True, text=True, check=False)
        assert not (tmp_path / "downloaded").exists()
        return done.returncode, " ".join(line.removeprefix("install: ") for line in done.stderr.splitlines())

    return of


PYTHON = """
case "$2" in
    *version_info*) echo {0} ;;
    *ensurepip*) exit {1} ;;
    *Python.h*) exit {2} ;;
    *) touch "$HOME/downloaded" ;;
esac
"""


def stub(file, script):
    file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("driver", ["550", "570"])
def test_an_old_driver_is_said_with_the_one_that_is_needed(machine, driver):
    code, said = machine(driver=driver)
    assert code == 1
    assert said.startswith(f"driver {DRIVERS[driver][0]} supports CUDA 12 at most")
    assert "install driver 580 or newer" in said and "cuda-compat-13-0" in said


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_a_new_driver_and_a_python_that_the_lock_has_wheels_for_are_enough(machine, python):
    assert machine(python=python) == (0, "all is there that the installation needs")


def test_the_cuda_of_the_installer_is_that_of_the_lock():
    text = SCRIPT.read_text()
    assert f"needed_cuda={locked('gpu')['cuda-toolkit'].partition('.')[0]}\n" in text


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
        f"Python 3.11, 3.12 or 3.13 is needed and python3 is {python}; set PYTHON to one, for example "
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


@pytest.mark.parametrize("word", ["all", "packages"])
def test_nothing_is_made_or_fetched_before_the_checks(machine, word):
    assert machine(missing=("g++",), word=word)[0] == 1


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
