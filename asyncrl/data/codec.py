"""The wire form of tasks, leases, trajectories and groups: msgpack maps with raw little-endian arrays.

Decoding checks everything it reads and raises
`InputError` with the path of the first wrong field, so a decoded message can be trusted. Decoded arrays are
read-only views of the received bytes. `*_to_map` and `*_from_map` give the same forms without msgpack, for
control messages that travel as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgpack
import numpy as np

from asyncrl.data.arrays import array_from_map, array_to_map
from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Tokens
from asyncrl.data.token_extras.table import decode_extras, encode_extras
from asyncrl.data.trajectory_info import checked_info
from asyncrl.data.transcript import MAX_CHARACTERS
from asyncrl.errors import InputError
from asyncrl.http_checks import check_msgpack
from asyncrl.types import (
    MAX_GROUP_SIZE,
    FailureClass,
    Group,
    Lease,
    Status,
    Task,
    Trajectory,
    Turn,
)

SCHEMA = 1
"""Version of the wire form; messages of another version are refused."""
MAX_ADDRESS = 512
"""Characters of an engine's address."""
LOGPROB_TOLERANCE = 1e-3
"""How far above 0 rounding may push the log-probability of a sampled token."""

_Member = TypeVar("_Member", bound=StrEnum)
_ARRAYS = {"token_ids": "<i4", "loss_mask": "|b1", "behavior_logprobs": "<f4", "versions": "<i4"}


def pack(message: Any) -> bytes:
    """Return plain data as msgpack bytes. Raises `InputError` for types that msgpack cannot encode."""
    try:
        return msgpack.packb(message, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"message cannot be packed: {error}") from None


def pack_list(bodies: Sequence[bytes]) -> list[bytes]:
    """Return the msgpack of a list of byte strings, in pieces: large ones are not copied, as `pack` does."""
    pieces = [msgpack.Packer().pack_array_header(len(bodies))]
    for body in bodies:
        pieces += pack_bytes(body)
    return pieces


def pack_bytes(body: bytes) -> list[bytes]:
    """Return the msgpack of a byte string in two pieces, so that it is not copied."""
    return [b"\xc6" + len(body).to_bytes(4, "big"), body]


def unpack(body: bytes | bytearray | memoryview) -> Any:
    """Return the plain data of msgpack bytes: string keys, no extension types, at most `http_checks.MAX_OBJECTS`
    values.

    Raises `InputError` when malformed.
    """
    check_msgpack(body)
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True, ext_hook=_refuse_extension)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise InputError(
            f"message is not valid msgpack: {type(error).__name__}: {str(error)[:200]}"
        ) from None


def encode_group(group: Group) -> bytes:
    return pack(group_to_map(group))


def decode_group(body: bytes | bytearray | memoryview) -> Group:
    return group_from_map(unpack(body))


def encode_trajectory(trajectory: Trajectory) -> bytes:
    return pack(trajectory_to_map(trajectory))


def decode_trajectory(body: bytes | bytearray | memoryview) -> Trajectory:
    return trajectory_from_map(unpack(body))


def encode_task(task: Task) -> bytes:
    return pack(task_to_map(task))


def decode_task(body: bytes | bytearray | memoryview) -> Task:
    return task_from_map(unpack(body))


def task_to_map(task: Task) -> dict[str, Any]:
    return {"id": task.id, "env": task.env, "seed": task.seed, "split": task.split, "data": task.data}


def task_from_map(raw: Any, where: str = "task") -> Task:
    fields = Fields(raw, where)
    task = Task(
        id=fields.text("id", allow_empty=False),
        env=fields.text("env", allow_empty=False),
        seed=fields.integer("seed"),
        split=fields.text("split"),
        data=fields.free_form("data"),
    )
    fields.close()
    return task


def lease_to_map(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "task": task_to_map(lease.task),
        "version": lease.version,
        "deadline": lease.deadline,
        "group_size": lease.group_size,
        "attempt": lease.attempt,
        "expires_in_s": lease.expires_in_s,
        "order": lease.order,
        "max_turns": lease.max_turns,
        "extras": lease.extras,
    }


def lease_from_map(raw: Any, where: str = "lease") -> Lease:
    fields = Fields(raw, where)
    version = fields.integer("version", low=0)
    lease = Lease(
        id=fields.text("id", allow_empty=False),
        task=task_from_map(fields.take("task", dict), f"{where}.task"),
        version=version,
        deadline=fields.integer("deadline", low=version),
        group_size=fields.integer("group_size", low=1, high=MAX_GROUP_SIZE),
        attempt=fields.integer("attempt", low=1),
        expires_in_s=fields.number("expires_in_s", low=0.0),
        order=fields.integer("order", low=0),
        max_turns=fields.integer("max_turns", low=0),
        extras=fields.free_form("extras"),
    )
    fields.close()
    return lease


def group_to_map(group: Group) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": group.id,
        "task": task_to_map(group.task),
        "version": group.version,
        "worker": group.worker,
        "trajectories": [trajectory_to_map(trajectory) for trajectory in group.trajectories],
    }


def group_from_map(raw: Any, where: str = "group") -> Group:
    """Also checks that the trajectories belong to the group's task and that no episode occurs twice."""
    fields = Fields(raw, where)
    schema = fields.integer("schema")
    if schema != SCHEMA:
        raise InputError(f"{where}.schema must be {SCHEMA}, got {schema}")
    items = fields.take("trajectories", list)
    if not 1 <= len(items) <= MAX_GROUP_SIZE:
        raise InputError(f"{where}.trajectories must hold 1 to {MAX_GROUP_SIZE} items, got {len(items)}")
    group = Group(
        id=fields.text("id", allow_empty=False),
        task=task_from_map(fields.take("task", dict), f"{where}.task"),
        version=fields.integer("version", low=0),
        worker=fields.text("worker"),
        trajectories=tuple(
            trajectory_from_map(item, f"{where}.trajectories[{index}]") for index, item in enumerate(items)
        ),
    )
    fields.close()
    seen: set[int] = set()
    for index, trajectory in enumerate(group.trajectories):
        if trajectory.task_id != group.task.id:
            raise InputError(
                f"{where}.trajectories[{index}].task_id must be {group.task.id!r}, got {trajectory.task_id!r}"
            )
        if trajectory.episode_index in seen:
            raise InputError(
                f"{where}.trajectories[{index}].episode_index {trajectory.episode_index} occurs twice"
            )
        seen.add(trajectory.episode_index)
    return group


def trajectory_to_map(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "task_id": trajectory.task_id,
        "episode_index": trajectory.episode_index,
        **{name: array_to_map(getattr(trajectory, name), dtype, name) for name, dtype in _ARRAYS.items()},
        "turns": [
            [turn.start, turn.end, float(turn.reward), turn.observation_id, turn.matches]
            for turn in trajectory.turns
        ],
        "reward": float(trajectory.reward),
        "status": trajectory.status.value,
        "components": {name: float(value) for name, value in trajectory.components.items()},
        "success": trajectory.success,
        "failure": trajectory.failure.value if trajectory.failure is not None else None,
        "error": trajectory.error,
        "timing": {name: float(value) for name, value in trajectory.timing.items()},
        "info": trajectory.info,
        "conversation": trajectory.conversation,
        **({"engines": list(trajectory.engines)} if trajectory.engines else {}),
        **encode_extras(trajectory.extras),
    }


def trajectory_from_map(raw: Any, where: str = "trajectory") -> Trajectory:
    fields = Fields(raw, where)
    arrays = {
        name: array_from_map(fields.take(name, dict), dtype, f"{where}.{name}")
        for name, dtype in _ARRAYS.items()
    }
    _check_arrays(arrays, where)
    status, failure = _outcome(fields)
    turns = _turns_from_list(fields.take("turns", list), len(arrays["token_ids"]), f"{where}.turns")
    index = fields.integer("episode_index", low=0, high=MAX_GROUP_SIZE - 1)
    trajectory = Trajectory(
        task_id=fields.text("task_id", allow_empty=False),
        episode_index=index,
        token_ids=arrays["token_ids"],
        loss_mask=arrays["loss_mask"],
        behavior_logprobs=arrays["behavior_logprobs"],
        versions=arrays["versions"],
        turns=turns,
        reward=fields.number("reward"),
        status=status,
        components=fields.numbers("components"),
        success=fields.optional_bool("success"),
        failure=failure,
        error=fields.text("error"),
        timing=fields.numbers("timing"),
        info=checked_info(fields.take("info", dict), f"{where}.info", index),
        conversation=fields.long_text("conversation", MAX_CHARACTERS),
        engines=_engines_from_list(fields, len(turns)),
        extras=decode_extras(fields, Tokens(arrays["loss_mask"], len(turns))),
    )
    fields.close()
    return trajectory


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")


def _engines_from_list(fields: Fields, num_turns: int) -> tuple[str, ...]:
    """Read the engines of the turns: none, one for all, or one for each."""
    raw = fields.optional("engines", list, [])
    where = f"{fields.where}.engines"
    if len(raw) not in (0, 1, num_turns):
        raise InputError(f"{where} must be one for all turns or one for each of {num_turns}, got {len(raw)}")
    for index, item in enumerate(raw):
        if type(item) is not str or len(item) > MAX_ADDRESS:
            raise InputError(f"{where}[{index}] must be an address of at most {MAX_ADDRESS} characters")
    return tuple(raw)


def _check_arrays(arrays: dict[str, np.ndarray], where: str) -> None:
    token_ids, mask = arrays["token_ids"], arrays["loss_mask"]
    logprobs, versions = arrays["behavior_logprobs"], arrays["versions"]
    for name, array in arrays.items():
        if len(array) != len(token_ids):
            raise InputError(
                f"{where}.{name} must have {len(token_ids)} items like token_ids, got {len(array)}"
            )
    if not len(token_ids):
        return
    if token_ids.min() < 0:
        raise InputError(f"{where}.token_ids must not be negative, got {token_ids.min()}")
    if versions.min() < -1:
        raise InputError(f"{where}.versions must be at least -1, got {versions.min()}")
    if ((versions < 0) & mask).any():
        raise InputError(
            f"{where}.versions must be at least 0 where loss_mask is set, got {versions[mask].min()}"
        )
    # One comparison refuses NaN, infinities and positive values: NaN fails both sides.
    low, high = logprobs.min(), logprobs.max()
    if not (low > -np.inf and high <= LOGPROB_TOLERANCE):
        raise InputError(f"{where}.behavior_logprobs must be finite and at most 0, got range [{low}, {high}]")


def _outcome(fields: Fields) -> tuple[Status, FailureClass | None]:
    status = _member(Status, fields.text("status"), f"{fields.where}.status")
    text = fields.optional_text("failure")
    failure = None if text is None else _member(FailureClass, text, f"{fields.where}.failure")
    if (status is Status.FAILED) != (failure is not None):
        raise InputError(f"{fields.where}.failure must be set exactly when status is 'failed', got {text!r}")
    return status, failure


def _member(kind: type[_Member], value: str, where: str) -> _Member:
    try:
        return kind(value)
    except ValueError:
        allowed = [member.value for member in kind]
        raise InputError(f"{where} must be one of {allowed}, got {value[:64]!r}") from None


_TURN = ("start", "end", "reward", "observation_id", "matches")


def _turns_from_list(raw: list[Any], num_tokens: int, where: str) -> tuple[Turn, ...]:
    turns, previous_end = [], 0
    if len(raw) > num_tokens:
        raise InputError(f"{where} must not outnumber the {num_tokens} tokens, got {len(raw)}")
    for index, item in enumerate(raw):
        if type(item) is not list or len(item) != len(_TURN):
            raise InputError(f"{where}[{index}] must be [{', '.join(_TURN)}]")
        fields = Fields(dict(zip(_TURN, item, strict=True)), f"{where}[{index}]")
        start = fields.integer("start", low=previous_end, high=num_tokens)
        end = fields.integer("end", low=start, high=num_tokens)
        matches = fields.optional_bool("matches")
        turns.append(Turn(start, end, fields.number("reward"), fields.text("observation_id"), matches))
        previous_end = end
    return tuple(turns)
