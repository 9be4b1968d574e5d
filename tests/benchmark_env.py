"""An environment with programs that evaluate models and do not fit beside the lock.

inspect-ai asks for an older fsspec, and lm-eval brings scikit-learn, with which every import of transformers takes
twice as long. So they are installed into a virtual environment that borrows this one's other packages.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PACKAGES = ("lm-eval[api,ifeval]==0.4.13", "inspect-ai==0.3.285")
INSTALL_S = 300.0


def benchmark_python(cache: Path, packages: tuple[str, ...] = PACKAGES, dependencies: bool = True) -> str:
    """Return the environment's interpreter, made in `cache` if need be; skips where packages cannot be fetched.

    dependencies: whether what the packages ask for is installed, too.
    """
    python = cache / "venv" / "bin" / "python"
    made, wanted = cache / "packages", f"{sys.executable}\n{sysconfig.get_paths()['purelib']}\n{packages}\n"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.is_file() and made.read_text() == wanted:
            return str(python)
        venv.create(cache / "venv", clear=True, symlinks=True)
        site = next((cache / "venv").glob("lib/python*/site-packages"))
        (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(python)]
        options = ["--no-compile", *([] if dependencies else ["--no-deps"])]
        try:
            subprocess.run(
                [*pip, "install", *options, *packages],
                check=True, capture_output=True, text=True, timeout=INSTALL_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' and '.join(packages)} could not be fetched within {INSTALL_S:g} s")
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(f"{' and '.join(packages)} cannot be installed here: {' '.join(lines)[-300:]}")
        made.write_text(wanted)
    return str(python)
