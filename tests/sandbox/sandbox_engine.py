"""A real container engine for tests: Podman's Docker-compatible socket, with an image made of this machine's files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

IMAGE = "localhost/asyncrl-test:1"
TOOLS = (
    "sh", "dash", "bash", "cat", "readlink", "wc", "mkdir", "chmod", "mv", "rm", "sleep", "env", "id", "ls", "head",
    "true", "python3", "python3.11",
)  # fmt: skip
CONFIGURATION = """
[containers]
cgroups = "disabled"
cgroupns = "host"
netns = "none"
default_ulimits = ["nofile=512:512", "nproc=512:512"]
[engine]
runtime = "crun"
"""
# crun refuses the hybrid cgroup layout of some machines: hidden in a mount namespace of the service's own.
SERVICE = (
    "umount /sys/fs/cgroup/unified 2>/dev/null; exec podman {options} system service --time=0 unix://{socket}"
)


def missing() -> str:
    """Why there can be no engine here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in ("podman", "crun", "unshare") if shutil.which(name) is None]
    if not Path("/usr/bin/python3.11").exists():
        absent.append("/usr/bin/python3.11")
    return f"needs {', '.join(absent)}" if absent else ""


def _image_files() -> list[str]:
    files = {f"/usr/bin/{name}" for name in TOOLS if Path(f"/usr/bin/{name}").exists()}
    skipped = ("/test/", "/__pycache__", "/config-", "/idlelib/", "/lib2to3/")
    for path in Path("/usr/lib/python3.11").rglob("*"):
        if path.is_file() and not any(part in str(path) for part in skipped):
            files.add(str(path))
    binaries = [path for path in files if "/bin/" in path or path.endswith(".so")]
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    for path in set(re.findall(r"(/\S+\.so\S*)", listed)):
        files.add(path if path.startswith("/usr") else f"/usr{path}")
    return sorted(path for path in files if Path(path).exists())


def make_image(target: Path) -> None:
    with tarfile.open(target, "w") as tar:
        for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "work", "tmp", "dev", "proc", "sys", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for path in _image_files():
            tar.add(os.path.realpath(path), arcname=path.lstrip("/"))


class Engine:
    """Started on creation; `stop` ends it with every helper process it left and removes its folder."""

    def __init__(self) -> None:
        # Podman refuses a `--runroot` of more than 50 characters, which pytest's own folders exceed.
        folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
        (folder / "containers.conf").write_text(CONFIGURATION)
        self.socket = folder / "socket"
        self._folder = folder
        self._environment = os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")}
        options = f"--root {folder}/root --runroot {folder}/run --storage-driver=vfs"
        make_image(folder / "image.tar")
        self._podman(options, "import", str(folder / "image.tar"), IMAGE)
        (folder / "image.tar").unlink()
        self._options = options
        script = SERVICE.format(options=options, socket=self.socket)
        self._process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 20
        while not self.socket.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("podman's service did not start")
            time.sleep(0.05)

    def _podman(self, options: str, *command: str) -> None:
        argv = ["podman", *options.split(), *command]
        ended = subprocess.run(argv, env=self._environment, check=False, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"podman {command[0]}: {ended.stderr.strip()}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name != str(os.getpid()):
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                # Only what was started for this folder: conmon keeps running for minutes.
                if str(self._folder).encode() in line and b"conmon" in line:
                    os.kill(int(entry.name), signal.SIGKILL)
        subprocess.run(["umount", "-R", f"{self._folder}/root"], check=False, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)
