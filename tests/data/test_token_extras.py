"""Every kind of extra is collected, written, read and left out by its name alone."""

import numpy as np
import pytest

from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.data import codec
from asyncrl.data.token_extras.table import (
    KINDS,
    ROWS,
    check_reported,
    collectors,
    large_answers,
    read_by_models,
    reported_extras,
    request_fields,
    request_files,
    token_ids_of,
)
from asyncrl.errors import InputError
from asyncrl.extensions.commitments.commitment import commit
from asyncrl.extensions.league.token_extra import NextStates
from asyncrl.generation import Generated
from asyncrl.images import image_key
from asyncrl.types import PlacedImage, Status, Task
from tests.data.test_codec import IMAGES, STATES, THREE_TURNS, make_trajectory

STATE = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(2, 32)
VALUES = {
    "routed_experts": np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
    "images": IMAGES,
    "commitments": (commit(STATE),),
    "next_states": STATES,
}
"""A value of each kind for the trajectory of `test_codec`, whose second and third tokens were sampled."""

every_kind = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.fields])
"""Of requests alone is one without fields."""


def same(left, right):
    if isinstance(left, NextStates):
        return left.after == right.after and all(map(np.array_equal, left.token_ids, right.token_ids))
    return np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right


@every_kind
def test_a_kind_comes_back_from_the_wire_and_costs_nothing_where_there_is_none(name):
    sent = make_trajectory(turns=THREE_TURNS, extras={name: VALUES[name]})
    found = codec.decode_trajectory(codec.encode_trajectory(sent)).extras
    assert list(found) == [name]
    assert same(found[name], VALUES[name])
    without = codec.trajectory_to_map(make_trajectory(turns=THREE_TURNS, extras={}))
    added = codec.trajectory_to_map(sent).keys() - without.keys()
    assert added == KINDS[name].encode(VALUES[name]).keys()


def test_all_kinds_travel_together():
    sent = make_trajectory(turns=THREE_TURNS, extras=VALUES)
    found = codec.decode_trajectory(codec.encode_trajectory(sent)).extras
    assert found.keys() == VALUES.keys()
    assert all(same(found[name], VALUES[name]) for name in VALUES)


def test_an_extra_of_no_kind_is_refused_where_it_would_be_lost():
    with pytest.raises(InputError, match=r"unknown kind 'heat'; there are \['commitments', 'images', "):
        codec.encode_trajectory(make_trajectory(extras={"heat": 1}))


@every_kind
def test_a_trajectory_without_a_kind_has_the_others(name):
    whole = make_trajectory(turns=THREE_TURNS, extras=VALUES)
    left = whole.without(name)
    assert left.extras.keys() == VALUES.keys() - {name}
    assert left.without(name) is left
    assert name in whole.extras


def test_models_read_experts_and_images_and_what_is_checked_or_shown_stays_behind():
    assert set(read_by_models(VALUES)) == {"routed_experts", "images"}


def test_the_token_ids_within_extras_are_named():
    found = token_ids_of(VALUES)
    assert {name: ids.tolist() for name, ids in found.items()} == {
        f"next_states.token_ids[{number}]": ids.tolist() for number, ids in enumerate(STATES.token_ids)
    }


def test_what_engines_report_is_named_and_the_rest_left_out():
    experts = VALUES["routed_experts"]
    message = {
        "token_ids": b"",
        "routed_experts": {"dtype": "|u1", "shape": list(experts.shape), "data": experts.tobytes()},
        "commitments": list(VALUES["commitments"]),
    }
    found = reported_extras(message)
    assert found.keys() == {"routed_experts", "commitments"}
    assert same(found["routed_experts"], experts)
    assert found["commitments"] == VALUES["commitments"]
    assert reported_extras({"token_ids": b"", "routed_experts": None}) == {}


def test_a_row_of_the_table_names_the_class_of_its_kind_and_its_fields():
    for name, row in ROWS.items():
        assert KINDS[name].name == name
        if row.fields:
            assert KINDS[name].encode(VALUES[name]).keys() <= set(row.fields)


def test_what_is_of_requests_alone_is_refused_in_a_trajectory():
    without = [name for name, row in ROWS.items() if not row.fields]
    assert without == ["sampler"]
    with pytest.raises(InputError, match="a sampler is of requests alone"):
        codec.encode_trajectory(make_trajectory(extras={"sampler": None}))


def test_an_answer_reports_what_was_asked_for_and_nothing_else():
    message = {"commitments": [*VALUES["commitments"]]}
    check_reported(message, {"commitments": True}, 4, len(STATE))
    with pytest.raises(ValueError, match="commitments must be to"):
        check_reported(message, {}, 4, len(STATE))
    with pytest.raises(ValueError, match="routed_experts: not as asked"):
        check_reported({"routed_experts": {}}, {}, 4, 1)
    check_reported({"routed_experts": None}, {}, 4, 1)


def test_requests_of_one_call_share_their_files():
    one, other = PlacedImage(0, 1, "a", b"A"), PlacedImage(2, 3, "b", b"B")
    asked = [{"images": (one,)}, {"images": (one, other)}, {"routed_experts": 3}, {}]
    assert request_files(asked) == {"images": {"a": b"A", "b": b"B"}}
    assert [request_fields(each) for each in asked] == [
        {"images": [[0, 1, "a"]]}, {"images": [[0, 1, "a"], [2, 3, "b"]]}, {"routed_from": 3}, {},
    ]  # fmt: skip
    assert request_files(asked[2:]) == {}
    assert [large_answers(each) for each in asked] == [False, False, True, False]


@pytest.mark.parametrize("name", list(collectors()))
def test_an_episode_in_which_nothing_came_has_no_such_extra(name):
    collector = KINDS[name].collector()
    collector.drop(3)
    assert collector.value() is None
    asked = collector.asked()
    assert request_fields({} if asked is None else {name: asked}) in ({}, {"routed_from": 0})


def test_an_episode_collects_every_kind_over_its_turns_and_forgets_what_was_not_read():
    def sampled(num_tokens, experts):
        return Generated(
            np.arange(num_tokens, dtype=np.int32),
            np.zeros(num_tokens, np.float32),
            np.zeros(num_tokens, np.int32),
            "stop",
            extras={"routed_experts": experts, "commitments": (b"c",)},
        )

    key = image_key(b"file")
    seen = {"images": (PlacedImage(0, 1, key, b"file"),)}
    builder = TrajectoryBuilder(Task("t", "e"), 0)
    builder.add_context(np.arange(3, dtype=np.int32), extras=seen)
    assert builder.asked() == {"routed_experts": 0, "images": (PlacedImage(0, 1, key, b"file"),)}
    builder.add_turn(sampled(2, np.zeros((4, 1, 1), np.uint8)))
    builder.add_context(np.arange(2, dtype=np.int32), extras=seen)
    assert [image.start for image in builder.asked()["images"]] == [0, 5]
    builder.add_turn(sampled(1, np.ones((3, 1, 1), np.uint8)))
    builder.add_context(np.arange(2, dtype=np.int32), extras=seen)
    builder.drop_context()
    found = builder.finish(Status.FINISHED).extras
    assert found["routed_experts"].ravel().tolist() == [0] * 4 + [1] * 3
    assert [image.start for image in found["images"]] == [0, 5]
    assert found["commitments"] == (b"c", b"c")
