"""Rounds of an outer optimizer over HTTP: who is waited for, what counts once, and what a restart finds."""

import logging
import resource

import numpy as np
import pytest

from asyncrl.errors import ConfigError, ConflictError, InputError, UnavailableError
from asyncrl.extensions.outer.rounds import FOUNDER_S, Rounds
from asyncrl.extensions.outer.tensors import decode, encode
from tests.credentials import RUN
from tests.extensions.outer.served import SHAPES, A, B, C, Served, weights, whole
from tests.waiting import wait_until


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    yield found
    found.stop()


def test_a_round_is_the_mean_of_all_members_that_were_there_when_it_began(served):
    first, second = served.member(A), served.member(B, 1)
    assert second.join(SHAPES, 1.0).rounds == [0, 0]
    assert first.send(0, 4, whole(a=[1.0, 2.0])) == (1, False)
    assert weights(first, wanted=1) is None
    late = served.member(C, 2)
    second.send(0, 4, whole(a=[3.0, 0.0]))
    # Global weights minus the mean; the one that joined meanwhile was not waited for.
    assert weights(late, wanted=1) == [-2.0, -1.0]
    assert first.fetch(0, 1, 0, 0.0).members == 2
    assert weights(first, 1, 1) is None


def test_only_the_first_member_gives_its_weights_until_it_is_silent(served):
    first, second = served.client(A), served.client(B, 1)
    assert first.join(SHAPES, 1.0) == (True, [-1, -1])
    assert second.join(SHAPES, 1.0) == (False, [-1, -1])
    first.send(0, 0, whole(a=[1.0, 1.0]), start=True)
    with pytest.raises(ConflictError, match="no weights to begin with"):
        first.send(1, 2, whole(b=[[1.0, 1.0]]))
    served.clock.now += FOUNDER_S
    assert second.join(SHAPES, 1.0) == (True, [-1, -1])
    assert second.send(0, 0, whole(a=[2.0, 2.0]), start=True).round == 0
    second.send(1, 0, whole(b=[[2.0, 2.0]]), start=True)
    assert first.send(1, 0, whole(b=[[1.0, 1.0]]), start=True).repeated
    assert (weights(first, 0), weights(first, 1)) == ([2.0, 2.0], [[2.0, 2.0]])


def test_a_step_that_cannot_be_written_when_its_time_is_over_is_taken_once_later(served, caplog):
    first = served.member(A)
    served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process takes a byte.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            served.clock.now += served.settings.wait_timeout_s
            wait_until(lambda: "rounds that end: " in caplog.text, served.app.thread.is_alive)
            assert served.rounds.status()["rounds"] == [0, 0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    wait_until(lambda: served.rounds.status()["rounds"] == [1, 0], served.app.thread.is_alive)
    assert weights(first, wanted=1) == [-1.0, -1.0]
    served.again()
    assert weights(served.member(A), wanted=1) == [-1.0, -1.0]


def test_a_lost_member_costs_one_deadline_and_is_waited_for_again_when_it_is_back(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    served.pass_deadline()
    assert weights(first, wanted=1) == [-1.0, -1.0]
    assert [one["state"] for one in served.rounds.status()["members"]] == ["active", "lost"]
    first.send(0, 4, whole(a=[1.0, 1.0]))
    assert weights(first, wanted=2) == [-2.0, -2.0]
    # Its contribution of two rounds ago goes into the next one.
    assert second.send(0, 2, whole(a=[4.0, 4.0])).round == 3
    assert weights(second, wanted=3) is None
    first.send(0, 6, whole(a=[0.0, 0.0]))
    assert weights(second, wanted=3) == [-4.0, -4.0]


def test_a_member_that_leaves_is_not_waited_for(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    second.leave()
    assert weights(first, wanted=1) == [-1.0, -1.0]


def test_the_same_steps_never_count_twice(served):
    first, second = served.member(A), served.member(B, 1)
    assert first.send(0, 2, whole(a=[1.0, 1.0])) == (1, False)
    assert first.send(0, 2, whole(a=[1.0, 1.0])) == (1, True)
    second.send(0, 2, whole(a=[1.0, 1.0]))
    # A life of the run that has started from an earlier checkpoint comes by there once more.
    assert first.send(0, 2, whole(a=[9.0, 9.0])) == (1, True)
    assert first.send(0, 1, whole(a=[9.0, 9.0])) == (1, True)
    assert weights(first, wanted=1) == [-1.0, -1.0]
    # One that was not merged is in what its run sends next.
    first.send(0, 4, whole(a=[1.0, 1.0]))
    assert first.send(0, 6, whole(a=[3.0, 3.0])) == (2, False)
    second.send(0, 4, whole(a=[1.0, 1.0]))
    assert weights(first, wanted=2) == [-3.0, -3.0]


def test_a_service_that_is_started_again_has_all_it_acknowledged(served):
    first, second = served.member(A, momentum=0.5), served.member(B, 1, momentum=0.5)
    for client in (first, second):
        client.send(0, 2, whole(a=[2.0, 2.0]))
    # lr (g + mu b) with b = g = 2
    assert weights(first, wanted=1) == [-3.0, -3.0]
    first.send(0, 4, whole(a=[2.0, 2.0]))
    (served.folder / "outer" / "fragment-000" / "round-000002.partial").mkdir()
    served.again()
    first, second = served.client(A, momentum=0.5), served.client(B, 1, momentum=0.5)
    assert second.join(SHAPES, 1.0) == (False, [1, 0])
    assert first.send(0, 4, whole(a=[2.0, 2.0])) == (2, True)
    second.send(0, 4, whole(a=[2.0, 2.0]))
    # b = 0.5 * 2 + 2 = 3, update = 2 + 0.5 * 3
    assert weights(first, wanted=2) == [-6.5, -6.5]
    assert not list((served.folder / "outer" / "fragment-000" / "contributions").iterdir())


def test_eight_bits_travel_both_ways_and_all_have_the_same_weights(served):
    first, second = served.member(A, bits=8), served.member(B, 1, bits=8)
    exact, seen = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for number in (1, 2, 3):
        for client, values in ((first, [1.0, 0.3]), (second, [1.0, 0.1])):
            body, read = encode({"a": np.array(values, np.float32)}, 8)
            client.send(0, 2 * number, body)
            exact -= read["a"] / 2
        found = first.fetch(0, number, number - 1, 0.0)
        assert found.kind == "update"
        seen = seen - decode(found.body, SHAPES[0], 8)["a"]
        assert weights(second, wanted=number) == seen.tolist()
    # What rounding leaves of an update is in the next one.
    np.testing.assert_allclose(seen, exact, atol=1.0 / 127)
    assert first.fetch(0, 3, 0, 0.0).kind == "whole"


def test_runs_of_other_settings_numbers_or_models_are_refused(served):
    served.member(A)
    for changes, why in (
        ({"every": 4}, "outer.every: the other members have 2, got 4"),
        ({"bits": 8}, "outer.bits: the other members have 32, got 8"),
        ({"members": 4}, "outer.members: the other members have 3, got 4"),
        ({"method": "gossip"}, "outer.method: the other members have mean, got gossip"),
    ):
        with pytest.raises(ConfigError, match=why):
            served.client(B, 1, **changes).join(SHAPES, 1.0)
    with pytest.raises(ConfigError, match=r"outer\.fragments: the other members exchange other parameters"):
        served.client(B, 1).join([{"a": (3,)}, {"b": (1, 2)}], 1.0)
    with pytest.raises(ConfigError, match="a bearer token of this service's run is required"):
        served.client(B, 1, token=RUN.bearer("buffer")).join(SHAPES, 1.0)


def test_a_run_takes_the_place_of_an_earlier_one_with_its_number(served):
    first, other = served.member(A), served.member(B, 1)
    served.member(C)
    with pytest.raises(ConflictError, match="run-c has taken the place of this run as member 0"):
        first.send(0, 2, whole(a=[1.0, 1.0]))
    other.send(0, 2, whole(a=[1.0, 1.0]))
    assert served.rounds.status()["waiting_for"] == [["run-c"], []]


def test_damaged_and_wrong_bodies_change_nothing(served):
    first = served.member(A)
    for body, why in (
        (whole(b=[1.0, 1.0]), "a: is missing|b: is no parameter"),
        (whole(a=[1.0]), r"a: must be float32 \(2,\), got float32 \(1,\)"),
        (whole(a=[1.0, float("nan")]), "a: has values that are not finite"),
        (b"nothing of the kind", "not a safetensors body"),
        (b"x" * 10_000, "the body is larger than its weights"),
    ):
        with pytest.raises(InputError, match=why):
            first.send(0, 2, body)
    assert first.send(0, 2, whole(a=[1.0, 1.0])) == (1, False)


def test_a_folder_with_other_files_or_another_service_is_refused(served, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds files, and no outer\.json"):
        Rounds(tmp_path / "other")
    with pytest.raises(ConfigError, match="another service is using it"):
        Rounds(tmp_path / "outer")


def test_a_service_that_is_away_is_unavailable(served, monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.outer.client.RETRY_S", 0.1)
    first = served.member(A)
    served.end()
    with pytest.raises(UnavailableError):
        first.send(0, 2, whole(a=[1.0, 1.0]))
    with pytest.raises(UnavailableError):
        first.join(SHAPES, 0.1)
