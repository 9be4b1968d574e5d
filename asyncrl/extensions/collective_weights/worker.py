"""What every worker of an engine can do in the background: join a group, and receive a weight file."""

from __future__ import annotations

from typing import Any

from asyncrl.extensions.collective_weights.group import (
    Group,
    GroupPlace,
    device_name,
    own_stream,
    receive_file,
)
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.staging import copies_of_machine
from asyncrl.weights.vllm_workers import Background, add_call, worker_rank, workers_here


class _Membership(Background):
    """A group, and the transfer over it."""

    group: Group | None = None


def add_group_calls() -> None:
    """Have the workers of this process answer the calls that `hook` makes."""
    for call in (weights_device, weights_join, weights_receive, weights_progress):
        add_call(call.__name__, call)


def weights_device(worker: Any) -> str:
    """Return what tells this worker's device apart from others."""
    return device_name(worker.device)


def weights_join(worker: Any, place: dict[str, Any]) -> None:
    """Begin to join a group; `rank` is that of the engine's first worker."""
    earlier: _Membership | None = worker.__dict__.get("_weights")
    state = worker.__dict__["_weights"] = _Membership()
    own = GroupPlace(**(place | {"rank": place["rank"] + worker_rank(worker)}))

    def join() -> None:
        if earlier is not None and earlier.group is not None:
            earlier.group.abort()
        with own_stream(worker.device):
            state.group = Group(own, worker.device)

    state.begin(join)


def weights_receive(worker: Any, file: dict[str, Any], path: str) -> None:
    """Begin to receive a file together with the other workers of this machine. path: where, on the server's."""
    state: _Membership = worker.__dict__["_weights"]
    copies = copies_of_machine()
    if copies is not None:
        path = str(copies.path(weight_file_from_json(file)))
    parts = workers_here(worker)
    part = worker_rank(worker) % parts

    def receive() -> None:
        if state.group is None:
            raise RuntimeError("this worker is in no group")
        try:
            with own_stream(worker.device):
                receive_file(state.group, path, part, parts)
        except Exception:
            # The others would otherwise wait for their deadlines.
            state.group.abort()
            raise

    state.begin(receive)


def weights_progress(worker: Any) -> tuple[bool, str]:
    """Return whether what was begun has ended, and the reason it failed for, if any."""
    state: _Membership = worker.__dict__["_weights"]
    return state.running is not None and state.ended, state.error
