"""A weight file as chunks: what is fetched, checked and passed on at once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from asyncrl.extensions.table import rows

CHUNK_BYTES = 4 * 2**20
DIGEST_BYTES = 16
PART_BYTES = 64 * 2**20
"""Of a weight file, what one thread checks at once."""
THREADS = min(16, len(os.sched_getaffinity(0)))
WHOLE = "whole"
"""What of a version is brought to engines: its file. Others are `short_kinds`."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The layout of one file."""

    num_bytes: int
    chunk_bytes: int
    digests: bytes
    """xxh3-128 of each chunk, 16 bytes each."""

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 or len(self.digests) != DIGEST_BYTES * len(self):
            raise ValueError(f"{len(self.digests)} bytes of digests for {len(self)} chunks")

    def __len__(self) -> int:
        return -(-self.num_bytes // self.chunk_bytes)

    def span(self, index: int) -> tuple[int, int]:
        """Return where a chunk begins and ends, in bytes."""
        start = index * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.num_bytes)

    def covering(self, start: int, stop: int) -> range:
        """Return the chunks that hold the bytes from `start` to `stop`."""
        return range(start // self.chunk_bytes, -(-stop // self.chunk_bytes))

    def matches(self, index: int, content: memoryview | mmap.mmap) -> bool:
        """True if `content` is that of the chunk."""
        own = self.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]
        return xxhash.xxh3_128_digest(content) == own


def short_kinds() -> tuple[str, ...]:
    """Return the kinds that are shorter than a version's file, and of no use without other weights."""
    return tuple(row.name for row in rows("weight_forms"))


def file_checksum(path: str | Path) -> str:
    """Return the xxh3-128 of a file, read through a memory map (about 10 GB/s from cache)."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return xxhash.xxh3_128_hexdigest(b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return xxhash.xxh3_128_hexdigest(view)


def parts_checksum(path: str | Path) -> str:
    """Return the checksum of a weight file: the xxh3-128 of those of its parts, which are computed in threads."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return joined_checksum([])
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:

            def part(start: int) -> bytes:
                with view[start : start + PART_BYTES] as content:
                    return xxhash.xxh3_128_digest(content)

            with ThreadPoolExecutor(THREADS) as pool:
                return joined_checksum(list(pool.map(part, range(0, size, PART_BYTES))))


def joined_checksum(digests: Sequence[bytes]) -> str:
    """Return the checksum of a file whose parts have these."""
    return xxhash.xxh3_128_hexdigest(b"".join(digests))


def chunks_of(path: str | Path, chunk_bytes: int = CHUNK_BYTES) -> Chunks:
    """Return the layout of a file. Raises OSError."""
    digests = b"".join(xxhash.xxh3_128_digest(content) for content in _contents(path, chunk_bytes))
    return Chunks(os.stat(path).st_size, chunk_bytes, digests)


def matching(chunks: Chunks, path: str | Path) -> list[int]:
    """Return the chunks that a file of the right size holds already. Raises OSError."""
    contents = enumerate(_contents(path, chunks.chunk_bytes))
    return [index for index, content in contents if chunks.matches(index, content)]


def _contents(path: str | Path, chunk_bytes: int) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            for start in range(0, size, chunk_bytes):
                with view[start : start + chunk_bytes] as content:
                    yield content
