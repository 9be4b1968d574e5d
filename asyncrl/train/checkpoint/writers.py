"""What the ranks' writing threads tell and send one another while they write a checkpoint, beside the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.errors import AsyncRLError

T = TypeVar("T")

CHUNK_BYTES = 64 * 2**20


class CheckpointError(AsyncRLError):
    """Another rank could not write its part, or the store did not take the checkpoint."""


class Writers:
    """One on each rank. Its calls are collectives among the threads, over a gloo group that nothing else uses.

    A rank that dies or hangs makes the others' calls raise.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._group = dist.new_group(backend="gloo") if num_ranks > 1 else None

    def tell(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the messages (JSON) of all ranks."""
        if self._group is None:
            return [message]
        body = torch.tensor(list(json.dumps(message).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.num_ranks)]
        dist.all_gather(sizes, torch.tensor([len(body)]), group=self._group)
        longest = max(int(size) for size in sizes)
        found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.num_ranks)]
        dist.all_gather(found, torch.nn.functional.pad(body, (0, longest - len(body))), group=self._group)
        return [
            json.loads(each[: int(size)].numpy().tobytes()) for each, size in zip(found, sizes, strict=True)
        ]

    def together(self, step: Callable[[], T]) -> list[T]:
        """Return what the step returned (JSON) on each rank; where it failed on one, raise on all of them."""
        failure: Exception | None = None
        result = None
        try:
            result = step()
        except Exception as error:
            failure = error
        answers = self.tell({"result": result, "error": repr(failure) if failure is not None else ""})
        if failure is not None:
            raise failure
        for rank, other in enumerate(answers):
            if other["error"]:
                raise CheckpointError(f"rank {rank}: {other['error']}")
        return [other["result"] for other in answers]

    def send(self, path: Path, target: int = 0) -> None:
        """Send a file's bytes to the rank that receives them."""
        with open(path, "rb") as file:
            dist.send(torch.tensor([path.stat().st_size]), target, group=self._group)
            buffer = torch.empty(min(CHUNK_BYTES, path.stat().st_size), dtype=torch.uint8)
            while size := file.readinto(buffer.numpy().data):
                dist.send(buffer[:size], target, group=self._group)

    def receive(self, path: Path, source: int) -> None:
        """Write a file that another rank sends. An error of the disk is raised when all of it has been received."""
        size = torch.zeros(1, dtype=torch.long)
        dist.recv(size, source, group=self._group)
        left = int(size)
        failure: OSError | None = None
        with ExitStack() as opened:
            file: BinaryIO | None = None
            try:
                file = opened.enter_context(open(path, "wb"))
            except OSError as error:
                failure = error
            while left:
                chunk: Tensor = torch.empty(min(left, CHUNK_BYTES), dtype=torch.uint8)
                dist.recv(chunk, source, group=self._group)
                left -= len(chunk)
                try:
                    if file is not None and failure is None:
                        file.write(chunk.numpy().data)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure
