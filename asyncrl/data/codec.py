"""The wire form of tasks, leases, trajectories and groups: msgpack maps with raw little-endian arrays.

An array is `{"dtype": "<i4", "shape": [L], "data": bytes}`. Decoding checks everything it reads and raises
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

from asyncrl.algo.commitments import tokens_of
from asyncrl.data.fields import Fields
from asyncrl.data.trajectory_info import checked_info
from asyncrl.data.transcript import MAX_CHARACTERS
from asyncrl.errors import InputError
from asyncrl.http_checks import check_msgpack
from asyncrl.images import MAX_IMAGES, decode_image, image_key, image_size
from asyncrl.types import (
    MAX_GROUP_SIZE,
    MAX_TRAJECTORY_TOKENS,
    FailureClass,
    Group,
    Lease,
    NextStates,
    PlacedImage,
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
_EXPERTS = ("|u1", "<u2")
"""Types of the experts of tokens."""
MAX_ROUTES = 2**16
"""Experts of one token over all layers."""


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
        **{name: _array_to_map(getattr(trajectory, name), name) for name in _ARRAYS},
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
        **_experts_to_map(trajectory.routed_experts),
        **_images_to_map(trajectory.images),
        **({"commitments": list(trajectory.commitments)} if trajectory.commitments else {}),
        **({"engines": list(trajectory.engines)} if trajectory.engines else {}),
        **_next_states_to_map(trajectory.next_states),
    }


def trajectory_from_map(raw: Any, where: str = "trajectory") -> Trajectory:
    fields = Fields(raw, where)
    arrays = {
        name: _array_from_map(fields.take(name, dict), dtype, f"{where}.{name}")
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
        routed_experts=_experts_from_map(fields, len(arrays["token_ids"])),
        images=_images_from_map(fields, arrays["loss_mask"]),
        commitments=_commitments_from_list(fields, int(np.count_nonzero(arrays["loss_mask"]))),
        engines=_engines_from_list(fields, len(turns)),
        next_states=_next_states_from_map(fields, len(turns)),
    )
    fields.close()
    return trajectory


def check_images(group: Group) -> None:
    """Raise `InputError` unless every image of the group can be decoded; reading a group checks headers alone."""
    for t in group.trajectories:
        for key, data in {image.key: image.data for image in t.images}.items():
            decode_image(data, f"task {t.task_id} episode {t.episode_index}: image {key}")


def _images_to_map(images: tuple[PlacedImage, ...]) -> dict[str, Any]:
    """Each file once, under its key; nothing for a trajectory without images."""
    if not images:
        return {}
    return {
        "images": [[image.start, image.end, image.key] for image in images],
        "image_files": {image.key: image.data for image in images},
    }


def _images_from_map(fields: Fields, loss_mask: np.ndarray) -> tuple[PlacedImage, ...]:
    where = f"{fields.where}.images"
    raw = fields.optional("images", list, [])
    files = fields.optional("image_files", dict, {})
    if len(raw) > MAX_IMAGES:
        raise InputError(f"{where} must hold at most {MAX_IMAGES} images, got {len(raw)}")
    for key, data in files.items():
        if type(data) is not bytes or image_key(data) != key:
            raise InputError(f"{fields.where}.image_files: {key[:64]!r} must be the hash of its file")
        image_size(data, f"{fields.where}.image_files[{key}]")
    found: list[PlacedImage] = []
    before = 0
    for index, item in enumerate(raw):
        if type(item) is not list or [type(part) for part in item] != [int, int, str] or item[2] not in files:
            raise InputError(f"{where}[{index}] must be [start, end, key of a file]")
        start, end, key = item
        if not before <= start < end <= len(loss_mask) or loss_mask[start:end].any():
            raise InputError(
                f"{where}[{index}]: [{start}, {end}) must be tokens after {before} that were not sampled"
            )
        found.append(PlacedImage(start, end, key, files[key]))
        before = end
    if unplaced := files.keys() - {image.key for image in found}:
        raise InputError(f"{fields.where}.image_files has files without a place: {sorted(unplaced)[0]}")
    return tuple(found)


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")


def _array_to_map(array: np.ndarray, name: str) -> dict[str, Any]:
    dtype = np.dtype(_ARRAYS[name])
    array = np.asarray(array)
    if not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise InputError(f"{name} must be {dtype}, got {array.dtype}")
    narrowed = array.astype(dtype, copy=False)
    if dtype.kind == "i" and array.dtype.itemsize > dtype.itemsize and not np.array_equal(narrowed, array):
        raise InputError(f"{name} must fit {dtype}, got values up to {array.max()}")
    return {"dtype": _ARRAYS[name], "shape": list(array.shape), "data": narrowed.tobytes()}


def _array_from_map(raw: dict[str, Any], dtype: str, where: str) -> np.ndarray:
    fields = Fields(raw, where)
    given, shape, data = fields.take("dtype", str), fields.take("shape", list), fields.take("data", bytes)
    fields.close()
    if given != dtype:
        raise InputError(f"{where}.dtype must be {dtype!r}, got {given[:16]!r}")
    if len(shape) != 1 or type(shape[0]) is not int or not 0 <= shape[0] <= MAX_TRAJECTORY_TOKENS:
        raise InputError(
            f"{where}.shape must be [L] with L at most {MAX_TRAJECTORY_TOKENS}, got {str(shape)[:64]}"
        )
    if len(data) != shape[0] * np.dtype(dtype).itemsize:
        raise InputError(f"{where}.data must have {shape[0]} items of {dtype}, got {len(data)} bytes")
    # The highest byte is found in a twentieth of the time that counting takes.
    if dtype == "|b1" and data and np.frombuffer(data, np.uint8).max() > 1:
        raise InputError(f"{where}.data must hold only 0 and 1")
    return np.frombuffer(data, dtype)


def _experts_to_map(experts: np.ndarray | None) -> dict[str, Any]:
    """Return the field with the experts of tokens [R,layers,K]; none where the engine did not report them."""
    if experts is None:
        return {}
    dtype = np.dtype(experts.dtype).newbyteorder("<")
    if dtype.str not in _EXPERTS or experts.ndim != 3:
        raise InputError(
            f"routed_experts must be [R,layers,K] of uint8 or uint16, got {list(experts.shape)} of {experts.dtype}"
        )
    data = np.ascontiguousarray(experts, dtype).tobytes()
    return {"routed_experts": {"dtype": dtype.str, "shape": list(experts.shape), "data": data}}


def _experts_from_map(trajectory: Fields, num_tokens: int) -> np.ndarray | None:
    """Read the field that `_experts_to_map` wrote, if there is one."""
    if not trajectory.has("routed_experts"):
        return None
    where = f"{trajectory.where}.routed_experts"
    fields = Fields(trajectory.take("routed_experts", dict), where)
    dtype, shape, data = fields.take("dtype", str), fields.take("shape", list), fields.take("data", bytes)
    fields.close()
    if dtype not in _EXPERTS:
        raise InputError(f"{where}.dtype must be one of {list(_EXPERTS)}, got {dtype[:16]!r}")
    if (
        len(shape) != 3
        or any(type(n) is not int or n < 1 for n in shape)
        or shape[0] >= num_tokens
        or shape[1] * shape[2] > MAX_ROUTES
    ):
        raise InputError(
            f"{where}.shape must be [R,layers,K] with R below the {num_tokens} tokens, got {str(shape)[:64]}"
        )
    count = shape[0] * shape[1] * shape[2]
    if len(data) != count * np.dtype(dtype).itemsize:
        raise InputError(f"{where}.data must have {count} items of {dtype}, got {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def _commitments_from_list(fields: Fields, num_sampled: int) -> tuple[bytes, ...]:
    """Read commitments to the states of all sampled tokens; empty where there are none."""
    raw = fields.optional("commitments", list, [])
    where = f"{fields.where}.commitments"
    try:
        if not all(type(item) is bytes for item in raw):
            raise ValueError("every item must be bytes")
        covered = sum(map(tokens_of, raw))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    if raw and covered != num_sampled:
        raise InputError(f"{where} must be for the {num_sampled} tokens sampled, got {covered}")
    return tuple(raw)


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


def _next_states_to_map(states: NextStates | None) -> dict[str, Any]:
    """Return the field with the states of the other side; none where they were not noted."""
    if states is None:
        return {}
    return {
        "next_states": {
            "token_ids": [_array_to_map(ids, "token_ids") for ids in states.token_ids],
            "after": [None if place is None else list(place) for place in states.after],
        }
    }


def _next_states_from_map(trajectory: Fields, num_turns: int) -> NextStates | None:
    """Read the field that `_next_states_to_map` wrote, if there is one."""
    if not trajectory.has("next_states"):
        return None
    where = f"{trajectory.where}.next_states"
    fields = Fields(trajectory.take("next_states", dict), where)
    raw, after = fields.take("token_ids", list), fields.take("after", list)
    fields.close()
    if len(after) != num_turns or len(raw) > num_turns:
        raise InputError(
            f"{where} must have a state or null for each of {num_turns} turns, in no more conversations, got "
            f"{len(after)} in {len(raw)}"
        )
    ids = tuple(
        _array_from_map(item, _ARRAYS["token_ids"], f"{where}.token_ids[{index}]")
        for index, item in enumerate(raw)
    )
    for index, one in enumerate(ids):
        if len(one) and one.min() < 0:
            raise InputError(f"{where}.token_ids[{index}] must not be negative, got {one.min()}")
    places: list[tuple[int, int] | None] = []
    for index, item in enumerate(after):
        if item is None:
            places.append(None)
            continue
        if type(item) is not list or [type(part) for part in item] != [int, int]:
            raise InputError(f"{where}.after[{index}] must be null or [conversation, tokens]")
        conversation, size = item
        if not 0 <= conversation < len(ids) or not 1 <= size <= len(ids[conversation]):
            raise InputError(f"{where}.after[{index}] must be within its conversation, got {item}")
        places.append((conversation, size))
    return NextStates(ids, tuple(places))


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
