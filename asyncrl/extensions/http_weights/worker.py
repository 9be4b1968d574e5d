"""What the workers of an engine over several machines can do beside their own work: have a copy of each weight file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncrl.extensions.http_weights.machine_copies import fetch_copy
from asyncrl.weights.chunks import Chunks
from asyncrl.weights.files import WeightFile
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.staging import copies_of_machine
from asyncrl.weights.vllm_workers import Background, add_call, worker_rank, workers_here

ROOM, COPY = "room", "copy"


def job_name(kind: str, file: WeightFile) -> str:
    """Return the name of what a machine does for a file, such as `copy/2/3/PATH`: several files may be on their way."""
    return f"{kind}/{file.epoch}/{file.version}/{file.path}"


def add_copy_calls() -> None:
    """Have the workers of this process answer the calls that `other_machines` makes."""
    for call in (weights_room, weights_copy, weights_copied, weights_there, weights_keep_only):
        add_call(call.__name__, call)


def weights_room(worker: Any, file: dict[str, Any]) -> None:
    """Begin to make room for a file on this machine, where the server does not; `weights_copied` tells the end."""
    copies, wanted = copies_of_machine(), weight_file_from_json(file)
    if copies is not None:
        _on_machine(worker, job_name(ROOM, wanted), lambda: copies.make_room(wanted))


def weights_copy(worker: Any, file: dict[str, Any], chunks: dict[str, Any], server: str) -> None:
    """Begin to fetch a file that the engine's server has verified, where that is on another machine."""
    copies, wanted = copies_of_machine(), weight_file_from_json(file)
    if copies is not None:
        _on_machine(
            worker, job_name(COPY, wanted), lambda: fetch_copy(wanted, Chunks(**chunks), server, copies)
        )


def weights_copied(worker: Any, name: str) -> tuple[bool, str]:
    """Return whether a job of this machine has ended, and the reason it failed for, if any. name: the job's."""
    jobs = _jobs(worker)
    if (job := jobs.get(name)) is None:
        return True, ""
    if job.ended:
        del jobs[name]
    return job.ended, job.error


def weights_there(worker: Any, file: dict[str, Any]) -> bool:
    """Return whether this machine has the copy that a worker of it would load."""
    copies = copies_of_machine()
    return copies is None or copies.local(weight_file_from_json(file)) is not None


def weights_keep_only(worker: Any, file: dict[str, Any]) -> None:
    """Remove this machine's copies of other versions."""
    copies = copies_of_machine()
    if copies is not None and _leads_machine(worker):
        copies.keep_only(weight_file_from_json(file))


def _on_machine(worker: Any, name: str, job: Callable[[], object]) -> None:
    """Begin a job once a machine, unless it is running."""
    jobs = _jobs(worker)
    if _leads_machine(worker) and (name not in jobs or jobs[name].ended):
        jobs[name] = Background()
        jobs[name].begin(job)


def _jobs(worker: Any) -> dict[str, Background]:
    """Return by their names what this machine does, and what has ended without anybody having asked for it."""
    jobs: dict[str, Background] = worker.__dict__.setdefault("_copies", {})
    return jobs


def _leads_machine(worker: Any) -> bool:
    return worker_rank(worker) % workers_here(worker) == 0
