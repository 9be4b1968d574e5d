"""What the package index says of the wheels that requirements/gpu.lock has beyond cpu.lock, for tests/test_locks.py.

    python scripts/lock_facts.py

Nothing is installed and no wheel is fetched whole: pip reads metadata, and the names of the files, by ranges. Writes
requirements/gpu.facts.json. Run it after every change of gpu.lock.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FACTS = ROOT / "requirements" / "gpu.facts.json"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(34, 4, -1)), "manylinux2014_x86_64"]
ALSO = ("torch", "transformers", "nixl", "nixl-cu13", "triton", "apache-tvm-ffi")
"""In both locks, and named by what is in one alone, or in a version of its own."""


def pins(kind: str) -> dict[str, str]:
    """Return the lines of a lock by the packages' names, spelt as these are."""
    lines = (ROOT / "requirements" / f"{kind}.lock").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {name: f"{name}{one.specifier}" for one in found if (name := canonicalize_name(one.name))}


def report(lines: list[str], python: str) -> list[dict[str, Any]]:
    """Return what pip would install of these lines for a version of Python."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--no-cache-dir",
            "--use-feature=fast-deps", "--ignore-installed", "--only-binary=:all:", "--python-version", python,
            *platforms, "--target", f"{folder}/none", "--report", str(file), *lines,
        ]  # fmt: skip
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(file.read_text())["install"]
        return found


def files_of(url: str) -> list[str]:
    """Return the names of a wheel's files outside of its metadata."""
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._internal.network.session import PipSession

    with LazyZipOverHTTP(url, PipSession()) as remote:
        names = zipfile.ZipFile(remote).namelist()
    return [name for name in names if ".dist-info/" not in name and not name.endswith("/")]


def facts() -> dict[str, Any]:
    gpu, cpu = pins("gpu"), pins("cpu")
    lines = [line for name, line in gpu.items() if cpu.get(name) != line or name in ALSO]
    packages: dict[str, dict[str, Any]] = defaultdict(lambda: {"wheels": {}})
    owners: dict[str, list[str]] = defaultdict(list)
    for python in PYTHONS:
        for one in report(lines, python):
            data, url = one["metadata"], one["download_info"]["url"]
            name = canonicalize_name(data["name"])
            package = packages[name]
            asked = [text for text in data.get("requires_dist", []) if "extra ==" not in text]
            package |= {"version": data["version"], "requires": asked}
            package["python"] = data.get("requires_python", "")
            package["wheels"][python] = url.rpartition("/")[2]
            if python == PYTHONS[0]:
                print(name, file=sys.stderr)
                for file in files_of(url):
                    owners[file].append(name)
    shared = {file: sorted(names) for file, names in sorted(owners.items()) if len(names) > 1}
    return {"packages": dict(sorted(packages.items())), "files in several wheels": shared}


if __name__ == "__main__":
    FACTS.write_text(json.dumps(facts(), indent=1) + "\n")
