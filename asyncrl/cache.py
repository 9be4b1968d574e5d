"""Where what costs time to make is kept between commands, and what its files are known by."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent


def cache_folder() -> Path:
    """Return where base models and what is known of rows are kept between runs: `ASYNCRL_CACHE`, or `.cache` in the
    working directory."""
    return Path(os.environ.get("ASYNCRL_CACHE", ".cache"))


def cache_file(kind: str, follows_from: str, suffix: str) -> Path:
    """Return the file of a kind that is of what `follows_from` says, and of nothing else."""
    digest = hashlib.blake2b(follows_from.encode(), digest_size=12).hexdigest()
    return cache_folder() / kind / f"{digest}{suffix}"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield where to write a file that is complete or absent: it takes the place of `path` at the end, and is gone
    after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".partial-{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@functools.cache
def code_digest(*names: str) -> str:
    """Return what changes with the code, and the tables beside it, in files and folders of the package."""
    places = [PACKAGE / name for name in names]
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(file for file in files if file.suffix in (".py", ".toml")):
        digest.update(f"{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes())
    return digest.hexdigest()
