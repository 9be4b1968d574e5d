"""What the workers of an engine over several machines can do beside their own work: have a copy of each weight file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncrl.extensions.http_weights.machine_copies import fetch_copy
from asyncrl.weights.chunks import Chunks
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.staging import copies_of_machine
from asyncrl.weights.vllm_workers import Background, add_call, worker_rank, workers_here


class _Copying(Background):
    """What one machine is about."""

    key: Any = None
    """What tells it apart from others."""


def add_copy_calls() -> None:
    """Have the workers of this process answer the calls that `other_machines` makes."""
    for call in (weights_room, weights_copy, weights_copied, weights_keep_only):
        add_call(call.__name__, call)


def weights_room(worker: Any, file: dict[str, Any]) -> None:
    """Begin to make room for a file on this machine, where the server does not; `weights_copied` tells the end."""
    copies, wanted = copies_of_machine(), weight_file_from_json(file)
    if copies is not None:
        _on_machine(worker, ("room", wanted.checksum), lambda: copies.make_room(wanted))


def weights_copy(worker: Any, file: dict[str, Any], chunks: dict[str, Any], server: str) -> None:
    """Begin to fetch a file that the engine's server has verified, where that is on another machine."""
    copies, wanted = copies_of_machine(), weight_file_from_json(file)
    if copies is not None:
        _on_machine(
            worker, ("copy", wanted.checksum), lambda: fetch_copy(wanted, Chunks(**chunks), server, copies)
        )


def weights_copied(worker: Any) -> tuple[bool, str]:
    """Return whether what this machine was to have is there, and the reason it is not, if any."""
    state: _Copying | None = worker.__dict__.get("_copy")
    return (True, "") if state is None else (state.ended, state.error)


def weights_keep_only(worker: Any, file: dict[str, Any]) -> None:
    """Remove this machine's copies of other versions."""
    copies = copies_of_machine()
    if copies is not None and _leads_machine(worker):
        copies.keep_only(weight_file_from_json(file))


def _on_machine(worker: Any, key: Any, job: Callable[[], object]) -> None:
    """Begin a job once a machine, unless it is running."""
    state: _Copying = worker.__dict__.setdefault("_copy", _Copying())
    if _leads_machine(worker) and (state.ended or state.key != key):
        state.key = key
        state.begin(job)


def _leads_machine(worker: Any) -> bool:
    return worker_rank(worker) % workers_here(worker) == 0
