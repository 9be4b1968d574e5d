"""Several processes, each with the whole base model, that compute the rows of a request together.

Rank 0 has the policies, their gradients and their AdamW; the others keep nothing between two requests.

    rank 0                                  the others
    asks: the request and the adapter  ->   idle until then
    computes its rows                       compute theirs
    hears what each has found          <-   log-probabilities and loss, or why there is none
    says how it goes on                ->   wait for it
    adds gradients in the ranks' order <-   their gradients

What is on the CPU travels by gloo, what is on GPUs by NCCL. Messages are JSON.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.disk import FAULTS
from asyncrl.endpoint import interface_to
from asyncrl.errors import AsyncRLError, InputError
from asyncrl.extensions.tinker.policies import TrainedAdapter
from asyncrl.extensions.tinker.rows import Row
from asyncrl.extensions.tinker.wire import ForwardBackward

log = logging.getLogger("asyncrl.tinker")
STORE = "store"
IDLE = timedelta(days=3650)
"""Until the next request. A rank 0 that ends closes its connections, which ends this wait."""
AGAIN = "a server that is started again goes on where this one was"


class LostRankError(AsyncRLError):
    """A rank has ended or hangs, so that nothing can be computed; the server ends."""


class HungRankError(LostRankError):
    """A rank gives no answer, and its connections are open."""


class FailedRankError(AsyncRLError):
    """Another rank could not compute its rows of a request."""


def shares(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the indices of the rows that each rank computes: the longest row first, to the rank with the fewest tokens
    so far, of several the first. lengths: tokens of each row."""
    found: list[list[int]] = [[] for _ in range(size)]
    tokens = [0] * size
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        rank = tokens.index(min(tokens))
        found[rank].append(index)
        tokens[rank] += lengths[index]
    return found


class Ranks:
    """This process among the ranks. Joining waits for all others.

    folder: where they find each other, for this user alone. timeout_s: how long rank 0 waits for another. ended: on
    rank 0, says which of the others' processes has ended, "" if none has. Raises `LostRankError`.
    """

    def __init__(
        self, folder: Path, rank: int, size: int, timeout_s: float, ended: Callable[[], str] = lambda: ""
    ) -> None:
        self.rank, self.size, self._ended = rank, size, ended
        # Rank 0 may be waiting for one of the others while the rest of them wait for it.
        self.timeout_s, self._limit = (2 * timeout_s, "twice ") if rank else (timeout_s, "")
        # They are on one machine, and gloo asks nobody for a token.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to("127.0.0.1"))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store, limit = dist.FileStore(str(folder / STORE), size), timedelta(seconds=self.timeout_s)
        with self._reaching("another rank"):
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)

    def compute(
        self, policy: TrainedAdapter, rows: Sequence[Row], request: ForwardBackward
    ) -> tuple[list[np.ndarray], float]:
        """See `asyncrl.extensions.tinker.policies.Compute`. A collective, which rank 0 begins by asking the others.

        Elsewhere than on rank 0 answers are of this rank's rows alone. Raises `LostRankError`, `FailedRankError` and
        what computing rows raises; after the first, nothing can be computed any more.
        """
        # Before the others are asked: a lack of memory is this request's failure.
        weights = _flat([one.detach() for one in policy.parameters.values()])
        if self.rank == 0:
            self._ask(policy, request)
        self._send_adapter(policy, weights)
        divided = shares([len(row.tokens) for row in rows], self.size)
        mine = divided[self.rank]
        answers: list[np.ndarray] = []
        failure: Exception | None = None
        report: dict[str, Any] = {"loss": 0.0, "without": []}
        gradient = other = torch.zeros(0)
        try:
            answers, report["loss"] = policy.compute([rows[index] for index in mine], request)
            if not request.forward_only:
                report["without"] = [
                    n for n, one in enumerate(policy.parameters.values()) if one.grad is None
                ]
                gradient = _gradient(policy)
                # Here, for the same reason.
                other = torch.empty_like(gradient) if self.rank == 0 else gradient
        except FAULTS:
            raise
        except Exception as error:
            failure, report["failure"] = error, _told(error)
            if self.rank and not isinstance(error, InputError):
                log.exception("rank %d: request %s/%d", self.rank, request.model_id, request.seq_id)
        told = self._agree(report)
        if (failed := told.get("failure")) is not None:
            raise failure or _raised(failed)
        answers = self._collect(answers, rows, divided)
        if not request.forward_only:
            self._add_up(policy, gradient, other, told["without"])
        return answers, told["loss"]

    def next(self) -> tuple[dict[str, Any], bytes]:
        """Return what rank 0 asks next: the settings of an adapter, and the request. Raises `LostRankError`."""
        asked = self._hear(0, IDLE)
        body = torch.empty(asked["size"], dtype=torch.uint8)
        self._receive(body, 0)
        return asked["settings"], body.numpy().tobytes()

    def _ask(self, policy: TrainedAdapter, request: ForwardBackward) -> None:
        body = torch.frombuffer(bytearray(request.body), dtype=torch.uint8)
        for rank in range(1, self.size):
            self._tell(rank, {"settings": asdict(policy.settings), "size": len(body)})
            self._send(body, rank)

    def _send_adapter(self, policy: TrainedAdapter, weights: Tensor) -> None:
        """Give the others the adapter of rank 0. weights: all parameters in one piece."""
        with self._reaching("another rank"):
            dist.broadcast(weights, 0)
        if self.rank:
            for parameter, own in zip(policy.parameters.values(), _parts(policy, weights), strict=True):
                parameter.data.copy_(own)

    def _agree(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return what the reports of all ranks come to, which rank 0 says: the failure of the first rank with one, the
        sum of the losses, and the parameters without a gradient on every rank."""
        if self.rank:
            self._tell(0, report)
            return self._hear(0)
        reports = [report, *(self._hear(rank) for rank in range(1, self.size))]
        failures = [{**one["failure"], "rank": rank} for rank, one in enumerate(reports) if "failure" in one]
        without = set(report["without"]).intersection(*(one["without"] for one in reports))
        told: dict[str, Any] = {"loss": sum(one["loss"] for one in reports), "without": sorted(without)}
        if failures:
            told["failure"] = failures[0]
        for rank in range(1, self.size):
            self._tell(rank, told)
        return told

    def _collect(
        self, answers: list[np.ndarray], rows: Sequence[Row], divided: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """Return the answers in the order of the rows on rank 0. answers: of this rank's rows."""
        if self.rank:
            self._send(_flat([torch.from_numpy(one) for one in answers]), 0)
            return answers
        found = dict(zip(divided[0], answers, strict=True))
        for rank in range(1, self.size):
            shapes = [rows[index].shape for index in divided[rank]]
            ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
            flat = torch.empty(int(ends[-1]) if len(ends) else 0)
            self._receive(flat, rank)
            for index, shape, part in zip(
                divided[rank], shapes, np.split(flat.numpy(), ends[:-1]), strict=False
            ):
                found[index] = part.reshape(shape)
        return [found[index] for index in range(len(rows))]

    def _add_up(
        self, policy: TrainedAdapter, gradient: Tensor, other: Tensor, without: Sequence[int]
    ) -> None:
        """Add the ranks' gradients in their order, on rank 0. other: room for one more."""
        if self.rank:
            self._send(gradient, 0)
            return
        for rank in range(1, self.size):
            self._receive(other, rank)
            gradient += other
        for number, (parameter, own) in enumerate(
            zip(policy.parameters.values(), _parts(policy, gradient), strict=True)
        ):
            parameter.grad = None if number in without else own

    def _tell(self, rank: int, message: Mapping[str, Any]) -> None:
        body = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        self._send(torch.tensor([len(body)]), rank)
        self._send(body, rank)

    def _hear(self, rank: int, limit: timedelta | None = None) -> dict[str, Any]:
        size = torch.zeros(1, dtype=torch.int64)
        self._receive(size, rank, limit)
        body = torch.empty(int(size), dtype=torch.uint8)
        self._receive(body, rank)
        found: dict[str, Any] = json.loads(body.numpy().tobytes())
        return found

    def _send(self, tensor: Tensor, rank: int) -> None:
        with self._reaching(f"rank {rank}"):
            dist.send(tensor, rank)

    def _receive(self, tensor: Tensor, rank: int, limit: timedelta | None = None) -> None:
        limit = limit or timedelta(seconds=self.timeout_s)
        with self._reaching(f"rank {rank}", limit.total_seconds()):
            work = dist.irecv(tensor, rank)
            assert work is not None
            work.wait(limit)

    @contextmanager
    def _reaching(self, other: str, limit_s: float = 0.0) -> Iterator[None]:
        """limit_s: how long it may take, if not `timeout_s`."""
        begun, limit_s = time.monotonic(), limit_s or self.timeout_s
        try:
            yield
        except RuntimeError as error:
            hangs = time.monotonic() - begun >= limit_s
            if (what := self._ended()) or not hangs:
                raise LostRankError(f"{what or f'{other} has closed its connections'}; {AGAIN}") from error
            said = f"hangs: no answer within {limit_s:g} s ({self._limit}train.stall_timeout_s)"
            raise HungRankError(f"{other} {said}; {AGAIN}") from error


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in tensors]) if tensors else torch.zeros(0)


def _gradient(policy: TrainedAdapter) -> Tensor:
    """Return the gradient of all parameters in one piece; 0 where there is none."""
    return _flat(
        [torch.zeros_like(one) if one.grad is None else one.grad for one in policy.parameters.values()]
    )


def _parts(policy: TrainedAdapter, flat: Tensor) -> list[Tensor]:
    """Return what belongs to each parameter, as parts of the same memory."""
    wanted = list(policy.parameters.values())
    parts = flat.split([one.numel() for one in wanted])
    return [part.view_as(one) for part, one in zip(parts, wanted, strict=True)]


def _told(error: Exception) -> dict[str, str]:
    if isinstance(error, InputError):
        return {"kind": "input", "text": str(error)}
    if isinstance(error, torch.OutOfMemoryError):
        return {"kind": "memory", "text": str(error)}
    return {"kind": "", "text": f"{type(error).__name__}: {error}"}


def _raised(told: Mapping[str, Any]) -> Exception:
    if told["kind"] == "input":
        return InputError(told["text"])
    if told["kind"] == "memory":
        return torch.OutOfMemoryError(told["text"])
    return FailedRankError(f"rank {told['rank']}: {told['text']}")
