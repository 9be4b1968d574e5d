"""The wire form keeps every field and refuses everything that is not exactly right."""

import dataclasses
import io
import math

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data import codec
from asyncrl.data.token_extras.table import check_files, hold_files
from asyncrl.data.transcript import MAX_CHARACTERS
from asyncrl.errors import InputError
from asyncrl.extensions.league.token_extra import NextStates
from asyncrl.images import image_key
from asyncrl.types import (
    FailureClass,
    Group,
    Lease,
    PlacedImage,
    Status,
    Task,
    Trajectory,
    Turn,
)
from tests.vision import picture

TASK = Task(id="t-1", env="gridworld", seed=7, split="heldout", data={"walls": [[0, 1], [2, 2]], "note": "é"})


def make_trajectory(episode_index=0, **changes):
    fields = {
        "task_id": "t-1",
        "episode_index": episode_index,
        "token_ids": np.array([5, 6, 7, 8], np.int32),
        "loss_mask": np.array([False, True, True, False]),
        "behavior_logprobs": np.array([0.0, -0.5, -1.25, 0.0], np.float32),
        "versions": np.array([-1, 3, 4, -1], np.int32),
        "turns": (Turn(1, 3, 0.25, "start", True),),
        "reward": 0.25,
        "status": Status.FINISHED,
        "components": {"goal": 0.25},
        "success": True,
        "timing": {"wall_s": 1.5},
        "info": {"agent": "a", "cached_tokens": 3},
        "extras": {"routed_experts": np.arange(12, dtype=np.uint16).reshape(3, 2, 2) + 300},
        "conversation": '[{"role":"user","content":"6 \N{MULTIPLICATION SIGN} 8?"}]',
    } | changes
    return Trajectory(**fields)


def make_group(*trajectories):
    return Group("g-1", TASK, 3, trajectories or (make_trajectory(0), make_trajectory(1)), worker="w")


def assert_same_trajectory(left, right):
    assert left.extras.keys() == right.extras.keys()
    pairs = [(name, left.extras[name], right.extras[name]) for name in left.extras]
    names = [field.name for field in dataclasses.fields(Trajectory) if field.name != "extras"]
    for name, a, b in [*pairs, *((name, getattr(left, name), getattr(right, name)) for name in names)]:
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b, name


def raw_group():
    return msgpack.unpackb(codec.encode_group(make_group()), raw=False)


def decode_raw(raw):
    return codec.decode_group(msgpack.packb(raw))


def test_a_group_comes_back_with_every_field():
    group = make_group()
    decoded = codec.decode_group(codec.encode_group(group))
    assert (decoded.id, decoded.task, decoded.version, decoded.worker) == ("g-1", TASK, 3, "w")
    for left, right in zip(group.trajectories, decoded.trajectories, strict=True):
        assert_same_trajectory(left, right)


STATES = NextStates((np.array([1, 2, 3], np.int32), np.array([4], np.int32)), ((0, 3), None, (1, 1)))
THREE_TURNS = (Turn(1, 2), Turn(2, 3), Turn(3, 3))


def test_the_states_of_the_other_side_come_back_and_cost_nothing_where_there_are_none():
    sent = make_trajectory(turns=THREE_TURNS, extras={"next_states": STATES})
    found = codec.decode_trajectory(codec.encode_trajectory(sent)).extras["next_states"]
    assert found.after == STATES.after
    assert [(ids.dtype, ids.tolist()) for ids in found.token_ids] == [(np.int32, [1, 2, 3]), (np.int32, [4])]
    assert "next_states" not in codec.trajectory_to_map(make_trajectory())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"after": [[0, 3], None]}, r"must have a state or null for each of 3 turns"),
        ({"after": [[0, 4], None, [1, 1]]}, r"after\[0\] must be within its conversation, got \[0, 4\]"),
        ({"after": [[0, 0], None, [1, 1]]}, r"after\[0\] must be within its conversation"),
        ({"after": [[2, 1], None, [1, 1]]}, r"after\[0\] must be within its conversation"),
        ({"after": [[True, 1], None, [1, 1]]}, r"after\[0\] must be null or \[conversation, tokens\]"),
        ({"token_ids": [{"dtype": "<i4", "shape": [1], "data": b"\xff\xff\xff\xff"}] * 2}, r"must not be negative"),
        ({"token_ids": [{"dtype": "<i8", "shape": [1], "data": bytes(8)}] * 2}, r"token_ids\[0\].dtype must be"),
        ({"more": 1}, r"more"),
    ],
)  # fmt: skip
def test_states_that_are_not_exactly_right_are_refused(change, message):
    raw = codec.trajectory_to_map(make_trajectory(turns=THREE_TURNS, extras={"next_states": STATES}))
    raw["next_states"] |= change
    with pytest.raises(InputError, match=message):
        codec.trajectory_from_map(raw)


def test_a_failed_episode_without_tokens_comes_back():
    empty = {
        "token_ids": np.zeros(0, np.int32),
        "loss_mask": np.zeros(0, bool),
        "behavior_logprobs": np.zeros(0, np.float32),
        "versions": np.zeros(0, np.int32),
        "extras": {},
    }
    failed = make_trajectory(
        turns=(),
        status=Status.FAILED,
        failure=FailureClass.ENVIRONMENT,
        error="reset raised",
        success=None,
        **empty,
    )
    assert_same_trajectory(codec.decode_trajectory(codec.encode_trajectory(failed)), failed)


def test_tasks_and_leases_come_back():
    extras = {"examples": ["[]", "[{}]"], "of_nobody": {"depth": 1}}
    lease = Lease("3-1-ab", TASK, 2, 4, 8, 1, 59.5, 7, max_turns=5, extras=extras)
    assert codec.lease_from_map(codec.unpack(codec.pack(codec.lease_to_map(lease)))) == lease
    assert codec.decode_task(codec.encode_task(TASK)) == TASK


def test_decoded_arrays_are_read_only():
    decoded = codec.decode_group(codec.encode_group(make_group()))
    with pytest.raises(ValueError, match="read-only"):
        decoded.trajectories[0].token_ids[0] = 1


def test_wider_integers_are_narrowed_and_floats_are_not_taken_for_ids():
    wide = make_trajectory(token_ids=np.array([5, 6, 7, 8]))
    assert codec.decode_trajectory(codec.encode_trajectory(wide)).token_ids.dtype == np.int32
    with pytest.raises(InputError, match="token_ids must be int32"):
        codec.encode_trajectory(make_trajectory(token_ids=np.array([5.0, 6, 7, 8])))
    with pytest.raises(InputError, match="token_ids must fit int32"):
        codec.encode_trajectory(make_trajectory(token_ids=np.array([5, 6, 7, 2**40])))


def set_path(raw, path, value):
    *parents, last = path
    for key in parents:
        raw = raw[key]
    raw[last] = value


FIRST = ("trajectories", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, r"group.schema must be 1"),
        (("id",), "", r"group.id must not be empty"),
        (("version",), -1, r"group.version must lie in"),
        (("version",), True, r"group.version must be int, got bool"),
        (("extra",), 1, r"group has unknown fields: extra"),
        (("trajectories",), [], r"group.trajectories must hold 1 to"),
        (("task", "data"), {"x": math.nan}, r"group.task.data.x must be finite"),
        (("task", "data"), {"x": [{"y": -math.inf}]}, r"group.task.data.x\[0\].y must be finite"),
        (("task", "data"), {"x": b"raw"}, r"group.task.data.x must be a JSON value, got bytes"),
        (("task", "seed"), 2**60, r"group.task.seed must lie in"),
        ((*FIRST, "task_id"), "other", r"task_id must be 't-1'"),
        ((*FIRST, "episode_index"), 1, r"trajectories\[1\].episode_index 1 occurs twice"),
        ((*FIRST, "reward"), math.inf, r"reward must lie in \[-1e\+30, 1e\+30\], got inf"),
        ((*FIRST, "reward"), "1", r"reward must be a number, got str"),
        ((*FIRST, "components"), {"a": math.nan}, r"components\['a'\] must lie in"),
        ((*FIRST, "status"), "done", r"status must be one of"),
        ((*FIRST, "failure"), "agent", r"failure must be set exactly when"),
        ((*FIRST, "success"), 1, r"success must be bool"),
        ((*FIRST, "turns"), [[0, 9, 0.0, "", None]], r"turns\[0\].end must lie in"),
        ((*FIRST, "turns"), [[1, 3, 0.0, "", None], [2, 4, 0.0, "", False]], r"turns\[1\].start must lie in"),
        ((*FIRST, "token_ids", "dtype"), "<i8", r"token_ids.dtype must be '<i4'"),
        ((*FIRST, "token_ids", "shape"), [2, 2], r"token_ids.shape must be \[L\]"),
        ((*FIRST, "token_ids", "shape"), [2**40], r"token_ids.shape must be \[L\]"),
        ((*FIRST, "token_ids", "shape"), [3], r"token_ids.data must have 3 items"),
        (
            (*FIRST, "token_ids", "data"),
            np.array([1, 2, -3, 4], "<i4").tobytes(),
            r"token_ids must not be negative",
        ),
        ((*FIRST, "loss_mask", "data"), b"\0\1\2\0", r"loss_mask.data must hold only 0 and 1"),
        (
            (*FIRST, "versions", "data"),
            np.array([-2, 3, 4, -1], "<i4").tobytes(),
            r"versions must be at least -1",
        ),
        (
            (*FIRST, "versions", "data"),
            np.array([-1, 3, -1, -1], "<i4").tobytes(),
            r"at least 0 where loss_mask",
        ),
        (
            (*FIRST, "behavior_logprobs", "data"),
            np.array([0, math.nan, 0, 0], "<f4").tobytes(),
            r"must be finite",
        ),
        (
            (*FIRST, "behavior_logprobs", "data"),
            np.array([0, -math.inf, 0, 0], "<f4").tobytes(),
            r"must be finite",
        ),
        ((*FIRST, "behavior_logprobs", "data"), np.array([0, 0.5, 0, 0], "<f4").tobytes(), r"at most 0"),
        (
            (*FIRST, "versions"),
            {"dtype": "<i4", "shape": [3], "data": bytes(12)},
            r"versions must have 4 items like token_ids, got 3",
        ),
        (
            (*FIRST, "routed_experts", "dtype"),
            "<i4",
            r"routed_experts.dtype must be one of \['\|u1', '<u2'\]",
        ),
        (
            (*FIRST, "routed_experts", "shape"),
            [4, 2, 2],
            r"routed_experts.shape must be .* R below the 4 tokens",
        ),
        ((*FIRST, "routed_experts", "shape"), [3, 4], r"routed_experts.shape must be \[R,layers,K\]"),
        ((*FIRST, "routed_experts", "shape"), [1, 2**17, 1], r"routed_experts.shape must be \[R,layers,K\]"),
        ((*FIRST, "routed_experts", "shape"), [3, 2, 1], r"routed_experts.data must have 6 items"),
    ],
)
def test_a_wrong_field_is_refused_by_name(path, value, message):
    raw = raw_group()
    set_path(raw, path, value)
    with pytest.raises(InputError, match=message):
        decode_raw(raw)


def test_a_group_of_before_conversations_were_kept_is_read():
    raw = raw_group()
    del raw["trajectories"][0]["conversation"]
    assert codec.group_from_map(raw).trajectories[0].conversation == ""


def test_an_episode_without_experts_is_read_and_arrays_that_are_none_are_refused():
    raw = raw_group()
    del raw["trajectories"][0]["routed_experts"]
    assert codec.group_from_map(raw).trajectories[0].extras == {}
    for wrong in (np.zeros((3, 4), np.uint8), np.zeros((3, 2, 2), np.int64)):
        with pytest.raises(InputError, match=r"routed_experts must be \[R,layers,K\] of uint8 or uint16"):
            codec.encode_trajectory(make_trajectory(extras={"routed_experts": wrong}))


TWO_TURNS = (Turn(1, 2), Turn(2, 3))


def sampled_by(*engines):
    return make_group(make_trajectory(turns=TWO_TURNS, engines=engines))


@pytest.mark.parametrize("engines", [(), ("http://a:1",), ("http://a:1", ""), ("http://a:1", "http://b:1")])
def test_the_engines_of_an_episodes_turns_come_back(engines):
    decoded = codec.decode_group(codec.encode_group(sampled_by(*engines)))
    assert decoded.trajectories[0].engines == engines


@pytest.mark.parametrize(
    ("engines", "says"),
    [
        (
            ("a", "b", "c"),
            r"trajectories\[0\]\.engines must be one for all turns or one for each of 2, got 3",
        ),
        (("a" * 513,), r"engines\[0\] must be an address of at most 512 characters"),
        ((7,), r"engines\[0\] must be an address"),
    ],
)
def test_engines_that_are_not_those_of_the_turns_are_refused(engines, says):
    with pytest.raises(InputError, match=says):
        codec.decode_group(codec.encode_group(sampled_by(*engines)))


@pytest.mark.parametrize("value", [7, None, "x" * (MAX_CHARACTERS + 1)], ids=["number", "nil", "long"])
def test_a_conversation_that_is_no_text_or_too_long_is_refused(value):
    raw = raw_group()
    raw["trajectories"][0]["conversation"] = value
    with pytest.raises(InputError, match="conversation must be str of at most"):
        codec.group_from_map(raw)


def test_a_missing_field_is_refused_by_name():
    for name in set(raw_group()["trajectories"][0]) - {"conversation", "routed_experts"}:
        raw = raw_group()
        del raw["trajectories"][0][name]
        with pytest.raises(InputError, match=rf"{name} (is missing|must be)"):
            decode_raw(raw)


@given(st.binary(max_size=64))
def test_random_bytes_are_refused(body):
    with pytest.raises(InputError):
        codec.decode_group(body)


@given(st.data())
def test_a_damaged_message_is_refused_or_still_valid(data):
    body = bytearray(codec.encode_group(make_group()))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    try:
        group = codec.decode_group(body)
    except InputError:
        return
    for trajectory in group.trajectories:
        assert np.isfinite(trajectory.behavior_logprobs).all()
        assert trajectory.min_version >= -1


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x81" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc7\x05\x01abcde", b"\x81\x01\x02"]
)
def test_hostile_msgpack_is_refused(body):
    with pytest.raises(InputError):
        codec.decode_group(body)


def seen(start, end, picture):
    data = picture_bytes(picture)
    return PlacedImage(start, end, image_key(data), data)


def picture_bytes(seed):
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return file.getvalue()


IMAGES = (seen(0, 1, 0), seen(3, 4, 0))


def test_images_keep_their_places_and_travel_once_each():
    trajectory = make_trajectory(extras={"images": IMAGES})
    body = codec.encode_trajectory(trajectory)
    assert body.count(IMAGES[0].data) == 1
    decoded = codec.decode_trajectory(body)
    assert_same_trajectory(decoded, trajectory)
    assert decoded.extras["images"][0].data is decoded.extras["images"][1].data
    assert hold_files(make_group(decoded))
    assert not hold_files(make_group())
    check_files(make_group(decoded))
    assert "images" not in codec.trajectory_to_map(make_trajectory()), "text costs nothing"


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ([IMAGES[0], seen(1, 2, 0)], "not sampled"),
        ([seen(3, 4, 0), seen(0, 1, 0)], "after 4"),
        ([seen(3, 5, 0)], "must be tokens"),
        ([dataclasses.replace(IMAGES[0], key="0" * 32)], "hash of its file"),
        ([dataclasses.replace(IMAGES[0], key=image_key(b"GIF89a"), data=b"GIF89a")], "format"),
        ([IMAGES[0]] * 300, "at most"),
    ],
)
def test_images_that_are_out_of_place_or_no_images_are_refused(images, says):
    raw = codec.trajectory_to_map(make_trajectory(extras={"images": tuple(images)}))
    with pytest.raises(InputError, match=says):
        codec.trajectory_from_map(raw)


def test_a_file_without_a_place_and_one_that_breaks_off_are_refused():
    raw = codec.trajectory_to_map(make_trajectory(extras={"images": IMAGES}))
    more = picture_bytes(1)
    with pytest.raises(InputError, match="without a place"):
        codec.trajectory_from_map(raw | {"image_files": raw["image_files"] | {image_key(more): more}})
    cut = more[: len(more) // 2]
    broken = make_trajectory(extras={"images": (PlacedImage(0, 1, image_key(cut), cut),)})
    with pytest.raises(InputError, match="cannot be decoded"):
        check_files(codec.decode_group(codec.encode_group(make_group(broken))))


def test_byte_strings_are_listed_without_copies():
    bodies = [b"", b"group", bytes(70_000)]
    pieces = codec.pack_list(bodies)
    assert codec.unpack(b"".join(pieces)) == bodies
    assert pieces[-1] is bodies[-1]
