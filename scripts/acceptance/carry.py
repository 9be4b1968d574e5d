"""What a machine without a network is brought for the acceptance run, in calls of limited size.

    python scripts/acceptance/carry.py carried [--limit 64MiB] [--tree 16MiB] [--python 3.12]

Such a machine has Python, torch, transformers, Triton and nvcc of its own (`THERE`); all else comes from the package
index, in the versions of requirements/gpu.lock, as wheels. Of vLLM only the kernels that Qwen3 in bfloat16 and float32
needs are taken (`PRUNED` says what is left out): whole, the wheel is five times a call. What is left is packed by xz,
cut into parts that fit a call beside the working tree, and written to `carried/call-N/`, with `carried/call-N.sh` as
the command of that call: it appends its part to what is there, and the last one unpacks and starts the run.

The order is that of the parts: nothing works before the last. Call them at once one after the other, as a machine that
waits may be taken away.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "gpu.lock"
THERE = (
    "torch",
    "transformers",
    "triton",
    "numpy",
    "nvidia-*",
    "cuda-*",
    "tokenizers",
    "huggingface-hub",
    "safetensors",
)
"""On the machine already, so that nothing is carried of them."""
CARRIED = (
    "vllm", "deepspeed", "liger-kernel", "peft", "accelerate", "pyarrow", "duckdb", "fastapi", "starlette", "uvicorn",
    "pydantic", "pydantic-core", "aiohttp", "httpx", "httpx-aiohttp", "msgspec", "msgpack", "xxhash", "blake3", "pyzmq",
    "einops", "hjson", "py-cpuinfo", "cloudpickle", "cbor2", "gguf", "tiktoken", "sentencepiece", "compressed-tensors",
    "depyf", "astor", "lark", "outlines-core", "diskcache", "xgrammar", "partial-json-parser", "lm-format-enforcer",
    "prometheus-client", "prometheus-fastapi-instrumentator", "openai", "openai-harmony", "anthropic", "mistral-common",
    "opentelemetry-api", "opentelemetry-sdk", "math-verify", "shtab", "rich", "python-json-logger", "watchfiles",
    "setproctitle", "pybase64", "ijson", "mcp", "apache-tvm-ffi", "numba", "llvmlite", "llguidance", "cachetools",
)  # fmt: skip
"""Packages of the lock that the run imports; those that the lock does not have are passed over."""
PRUNED = {
    "vllm": (
        "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_moe_C*", "vllm/vllm-rs*", "vllm/bin/*", "vllm/benchmarks/*",
        "vllm/third_party/deep_gemm/*", "vllm/third_party/triton_kernels/*", "vllm/_flashmla*",
    ),
    "pyarrow": ("pyarrow/include/*", "*/libarrow_flight*", "*/libarrow_substrait*", "*.pxd", "*.pyx"),
    "*": ("*/tests/*", "*.pyi", "*/__pycache__/*"),
}  # fmt: skip
"""Of wheels, what the run does without: FlashAttention 2 beside 3, kernels of experts, other models' extras."""
SOURCES = ("deepspeed",)
"""Of them, those that the index has no wheel of."""
SITE = "/opt/site"
"""Where it is unpacked; the last call puts it on PYTHONPATH."""
MIB = 2**20


def pins(lock: Path = LOCK) -> dict[str, str]:
    """Return the versions of a lock by package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def wanted(lock: Path = LOCK) -> list[str]:
    """Return what is asked of the package index."""
    versions = pins(lock)
    return [
        f"{name}=={versions[name]}"
        for name in CARRIED
        if name in versions and not any(fnmatch(name, pattern) for pattern in THERE)
    ]


def kept(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel that are carried."""
    package = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
    left_out = (*PRUNED.get(package, ()), *PRUNED["*"])
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("/") and not any(fnmatch(name, pattern) for pattern in left_out):
                yield name, archive.read(name)


def pack(wheels: Iterable[Path]) -> bytes:
    """Return the carried files of wheels as one archive."""
    packed = io.BytesIO()
    with lzma.open(packed, "wb", preset=6) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for wheel in sorted(wheels):
            for name, content in kept(wheel):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o755 if name.endswith(".so") else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def cut(content: bytes, limit: int) -> list[bytes]:
    """Return consecutive parts of at most `limit` bytes."""
    return [content[at : at + limit] for at in range(0, len(content), limit)] or [b""]


def commands(count: int, run: str) -> list[str]:
    """Return the command of each call; part N is at call-N/part."""
    calls = [f"cat call-{number}/part >> /tmp/carried.tar.xz" for number in range(1, count + 1)]
    calls[0] = f"rm -f /tmp/carried.tar.xz && {calls[0]}"
    calls[-1] += (
        f" && mkdir -p {SITE} && tar -xJf /tmp/carried.tar.xz -C {SITE} && PYTHONPATH={SITE}:$PWD {run}"
    )
    return calls


def write(folder: Path, content: bytes, limit: int, run: str) -> list[Path]:
    """Write the parts and commands of all calls; return the commands' files."""
    parts = cut(content, limit)
    found = []
    for number, (part, command) in enumerate(zip(parts, commands(len(parts), run), strict=True), start=1):
        (folder / f"call-{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"call-{number}" / "part").write_bytes(part)
        found.append(folder / f"call-{number}.sh")
        found[-1].write_text(f"{command}\n")
    return found


def download(folder: Path, python: str) -> list[Path]:
    """Fetch the wheels, from wherever pip is told to."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(34, 4, -1)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", python, "--dest", str(folder),
        *(word for name in (*platforms, "manylinux2014_x86_64") for word in ("--platform", name)),
    ]  # fmt: skip
    sources = [one for one in wanted() if one.partition("==")[0] in SOURCES]
    subprocess.run([*command, *(one for one in wanted() if one not in sources)], check=True)
    # Pure Python: nothing of it is compiled before it is used.
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        *sources,
    ]
    subprocess.run(build, check=True)
    return sorted(folder.glob("*.whl"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=64, metavar="MIB", help="of one call (64)")
    parser.add_argument(
        "--tree", type=float, default=16, metavar="MIB", help="of it, the working tree's (16)"
    )
    parser.add_argument("--python", default="3.12", help="the machine's version (3.12)")
    parser.add_argument(
        "--run",
        default="python3 scripts/gpu_acceptance.py --short --json $OUT/short.json",
        help="what the last call starts",
    )
    args = parser.parse_args(argv)
    wheels = download(args.folder / "wheels", args.python)
    content = pack(wheels)
    for file in write(args.folder, content, int((args.limit - args.tree) * MIB), args.run):
        print(f"{file}: {file.read_text().strip()}")
    print(f"{len(wheels)} wheels, {len(content) / MIB:.1f} MiB packed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
