"""Environments of programs that evaluate models and do not fit beside asyncrl's own packages.

inspect-ai asks for an older fsspec, and lm-eval brings scikit-learn, with which every import of transformers takes
twice as long. Such an environment borrows this one's other packages, so that torch is not installed again.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import UnavailableError
from asyncrl.process_start import python_module

INSTALL_S = 900.0
FOLDERS = ("site-packages", "dist-packages")
"""How folders of installed packages are called."""


def package_folders() -> list[str]:
    """Return the folders of this interpreter's packages, in the order in which it looks: of a virtual environment that
    sees those of the system, as in many images with GPUs, both."""
    found = [path for path in sys.path if Path(path).name in FOLDERS and Path(path).is_dir()]
    return list(dict.fromkeys([sysconfig.get_paths()["purelib"], *found]))


def make_environment(packages: Sequence[str], folder: Path, dependencies: bool = True) -> Path:
    """Return the interpreter of an environment with these packages and, otherwise, this one's; made once in `folder`.

    A process that finds another at it waits. dependencies: whether what the packages ask for is installed, too. Raises
    `UnavailableError` where they cannot be installed.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    python, made = folder / "venv" / "bin" / "python", folder / "packages"
    borrowed = "\n".join(package_folders())
    wanted = f"{sys.executable}\n{borrowed}\n{tuple(packages)}\n"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.is_file() and made.read_text() == wanted:
            return python
        print(f"installing {' '.join(packages)} into {folder}, once", file=sys.stderr, flush=True)
        made.unlink(missing_ok=True)
        venv.create(folder / "venv", clear=True, symlinks=True)
        site = next((folder / "venv").glob("lib/python*/site-packages"))
        (site / "others.pth").write_text(f"{borrowed}\n")
        pip = [*python_module("pip"), "--disable-pip-version-check", "-q", "--python", str(python)]
        options = ["--no-compile", *([] if dependencies else ["--no-deps"])]
        try:
            done = subprocess.run(
                [*pip, "install", *options, *packages],
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"{' and '.join(packages)} could not be fetched within {INSTALL_S:g} s"
            ) from None
        if done.returncode:
            wrong = " ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR"))
            raise UnavailableError(f"{' and '.join(packages)} cannot be installed: {wrong[-500:]}")
        made.write_text(wanted)
    return python
