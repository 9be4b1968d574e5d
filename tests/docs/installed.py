"""A virtual environment that has asyncrl as a reader has it: installed from a wheel, far from the repository."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.shared import made_once

COMMAND_TIMEOUT_S = 900.0
FORKING = """
import os, signal, sys
from asyncrl.process_start import FORK_SERVER, FORKED, start_process

words = sys.argv[1:]
own = os.path.join(os.path.dirname(sys.executable), "asyncrl")
if FORK_SERVER not in os.environ or ("asyncrl", *words[:1]) not in FORKED:
    os.execv(own, [own, *words])
child = start_process([sys.executable, "-m", "asyncrl", *words], os.environ)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: child.send_signal(number))
sys.exit(child.wait() % 256)
"""
"""The command of `Installed.forking`."""


@dataclass(frozen=True, slots=True)
class Installed:
    """`bin` holds `python` and `asyncrl`; in `forking` there is an `asyncrl` that forks what takes long to import."""

    bin: Path

    @property
    def forking(self) -> Path:
        return self.bin.parent / "forking"

    def environment(self) -> dict[str, str]:
        """Return the variables of a reader's shell: nothing leads to the repository."""
        kept = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ASYNCRL_CACHE", "ASYNCRL_TOKEN")
        }
        return kept | {
            "PATH": f"{self.forking}:{self.bin}:{os.environ['PATH']}",
            # The pages that call a service by hand say that the reader sets it.
            "ASYNCRL_TOKEN": "the-token-of-a-reader",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def run(
        self,
        command: list[str],
        folder: Path,
        timeout_s: float = COMMAND_TIMEOUT_S,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in `folder`; return its exit code and output, errors mixed in. variables: beside a reader's."""
        with open(self.bin.parent / "installing", "w") as lock:
            if "pip install" in " ".join(command):
                # All test processes share the environment, and pip reads what another one is replacing.
                fcntl.flock(lock, fcntl.LOCK_EX)
            return self._run(command, folder, timeout_s, variables)

    def _run(
        self, command: list[str], folder: Path, timeout_s: float, variables: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, env=self.environment() | dict(variables or {}), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip


def install() -> Installed:
    """Return the session's environment; the process that asks first makes it."""
    return Installed(made_once("installed", _install) / "venv" / "bin")


def wheel() -> Path:
    """Return the wheel of this repository; the process that asks first builds it."""
    (built,) = made_once("wheel", _build).glob("*.whl")
    return built


def _build(folder: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel", "--no-deps"),
        *("--no-build-isolation", "-w", str(folder), str(_export(folder / "source"))),
    ]
    subprocess.run(command, check=True, capture_output=True)


def _install(folder: Path) -> None:
    """Install the wheel into a new environment that borrows this interpreter's other packages."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    home = folder / "venv"
    venv.create(home, with_pip=True, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    # A plain path in a .pth file: what it names is found after the wheel, and its own .pth files (among them the
    # editable install of this repository) are not read.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    into = [
        *pip,
        "--python",
        str(home / "bin" / "python"),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel()),
    ]
    subprocess.run(into, check=True, capture_output=True)
    (home / "forking").mkdir()
    command = home / "forking" / "asyncrl"
    command.write_text(f"#!{home / 'bin' / 'python'}\n{FORKING}")
    command.chmod(0o755)


def _export(folder: Path) -> Path:
    """Copy the files that git knows or would add, so that building leaves nothing in the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listing.split("\0")):
        source, target = ROOT / name, folder / name
        if not source.exists() and not source.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        else:
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return folder
