"""Rounds in pairs over HTTP: who is paired with whom, who waits for whom, and what a restart finds.

Of members 0 and 1 fragment 0 has the pair (0, 1) in every round; of 0, 1 and 2 it has (0, 1) in the first; of 0 to 3 it
has (0, 2) and (1, 3) in the first, (0, 3) and (1, 2) in the second.
"""

import random

import numpy as np
import pytest
import xxhash

from asyncrl.extensions.outer.messages import FromMember, Join, Part, Put, Terms
from asyncrl.extensions.outer.rounds import Rounds
from asyncrl.extensions.outer.tensors import decode, encode
from tests.extensions.outer.served import SHAPES, A, B, C, Clock, Served, weights, whole

D = "d" * 32


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path, method="gossip", members=4)
    yield found
    found.stop()


def states(served):
    return [one["state"] for one in served.rounds.status()["members"]]


def test_a_pair_takes_its_step_when_both_have_contributed_whatever_the_others_do(served):
    first, second, third, fourth = (served.member(run, number) for number, run in enumerate((A, B, C, D)))
    assert first.send(0, 2, whole(a=[1.0, 2.0])) == (1, False)
    assert weights(first, wanted=1) is None
    assert served.rounds.status()["waiting_for"] == [["run-c"], []]
    third.send(0, 2, whole(a=[3.0, 0.0]))
    # Both had the same weights: minus the mean of the two.
    assert weights(first, wanted=1) == weights(third, wanted=1) == [-2.0, -1.0]
    assert first.fetch(0, 1, 0, 0.0).members == 2
    assert weights(second) == [0.0, 0.0]
    # The next partner is a round behind.
    assert first.send(0, 4, whole(a=[1.0, 1.0])) == (2, False)
    assert fourth.send(0, 2, whole(a=[4.0, 4.0])) == (1, False)
    assert weights(first, wanted=2) is None
    second.send(0, 2, whole(a=[0.0, 0.0]))
    assert weights(second, wanted=1) == weights(fourth, wanted=1) == [-2.0, -2.0]
    fourth.send(0, 4, whole(a=[1.0, 1.0]))
    # From [-2, -1] and [-2, -2]: their mean, minus 1.
    assert weights(first, wanted=2) == weights(fourth, wanted=2) == [-3.0, -2.5]


def test_an_odd_one_out_goes_on_alone_at_once(served):
    first, _, third = served.member(A), served.member(B, 1), served.member(C, 2)
    third.send(0, 2, whole(a=[1.0, 2.0]))
    assert weights(third, wanted=1) == [-1.0, -2.0]
    assert third.fetch(0, 1, 0, 0.0).members == 1
    assert weights(first) == [0.0, 0.0]


def test_weights_that_differ_are_drawn_together_and_each_member_has_its_own_momentum(tmp_path):
    served = Served(tmp_path, method="gossip", learning_rate=0.5, momentum=0.5)
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[2.0, 0.0]))
    second.send(0, 2, whole(a=[0.0, 0.0]))
    # b = 0.5 * 1
    assert weights(first, wanted=1) == weights(second, wanted=1) == [-0.5, 0.0]
    second.leave()
    first.send(0, 4, whole(a=[1.0, 0.0]))
    # b = 0.5 * 0.5 + 0.5 * 1
    assert weights(first, wanted=2) == [-1.25, 0.0]
    second.join(SHAPES, 1.0)
    for client in (first, second):
        client.send(0, 6, whole(a=[0.0, 0.0]))
    # The mean is -0.875. b = 0.5 * 0.75 - 0.5 * 0.375 and 0.5 * 0.5 + 0.5 * 0.375
    assert (weights(first, wanted=3), weights(second, wanted=3)) == ([-1.4375, 0.0], [-0.9375, 0.0])
    served.stop()


def test_a_partner_that_stays_away_costs_one_deadline_and_meets_again_when_it_is_back(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    served.pass_deadline()
    assert weights(first, wanted=1) == [-1.0, -1.0]
    assert states(served) == ["active", "lost"]
    first.send(0, 4, whole(a=[1.0, 1.0]))
    assert weights(first, wanted=2) == [-2.0, -2.0]
    # Its contribution of two rounds ago goes into the next one.
    assert second.send(0, 2, whole(a=[4.0, 4.0])).round == 3
    assert weights(second, wanted=3) is None
    first.send(0, 6, whole(a=[0.0, 0.0]))
    assert weights(first, wanted=3) == weights(second, wanted=3) == [-3.0, -3.0]


def test_one_that_waits_in_an_earlier_round_is_late_and_not_lost(served):
    first, _, third, fourth = (served.member(run, number) for number, run in enumerate((A, B, C, D)))
    for client in (first, third):
        client.send(0, 2, whole(a=[0.0, 0.0]))
    first.send(0, 4, whole(a=[1.0, 1.0]))
    served.clock.now += 1.0
    fourth.send(0, 2, whole(a=[1.0, 1.0]))
    served.clock.now -= 1.0
    served.pass_deadline()
    assert weights(first, wanted=2) == [-1.0, -1.0]
    assert states(served) == ["active"] * 4
    assert served.rounds.status()["waiting_for"] == [["run-b"], []]


def test_who_leaves_or_is_replaced_is_not_waited_for(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    second.leave()
    assert weights(first, wanted=1) == [-1.0, -1.0]
    second.join(SHAPES, 1.0)
    first.send(0, 4, whole(a=[1.0, 1.0]))
    assert weights(first, wanted=2) is None
    third = served.member(C, 1)
    assert weights(first, wanted=2) == [-2.0, -2.0]
    # The new run has the weights of the first, as they were when it joined.
    assert weights(third) == [-1.0, -1.0]


def test_a_run_that_joins_late_takes_the_weights_of_the_lowest_member_that_is_there(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    served.pass_deadline()
    assert second.send(0, 2, whole(a=[3.0, 3.0])).round == 2
    first.leave()
    late = served.member(C, 2)
    assert late.join(SHAPES, 1.0).rounds == [2, 0]
    assert weights(late) == weights(second) == [-3.0, -3.0]


def test_a_run_that_joined_before_there_were_weights_keeps_its_place_in_the_first_round(served):
    first, second = served.client(A), served.client(B, 1)
    assert first.join(SHAPES, 1.0).start
    assert second.join(SHAPES, 1.0).rounds == [-1, -1]
    served.member(A)
    assert first.send(0, 2, whole(a=[1.0, 1.0])) == (1, False)
    assert second.send(0, 2, whole(a=[3.0, 3.0])) == (1, False)
    assert weights(first, wanted=1) == weights(second, wanted=1) == [-2.0, -2.0]


def test_the_same_steps_never_count_twice(served):
    first, second = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[1.0, 1.0]))
    # A life of the run that has started from an earlier checkpoint comes by there once more.
    assert first.send(0, 2, whole(a=[9.0, 9.0])) == (1, True)
    second.send(0, 2, whole(a=[1.0, 1.0]))
    assert first.send(0, 2, whole(a=[9.0, 9.0])) == (1, True)
    assert weights(first, wanted=1) == weights(second, wanted=1) == [-1.0, -1.0]


def test_a_service_that_is_started_again_has_the_pairs_that_were_drawn(served):
    first, _ = served.member(A), served.member(B, 1)
    first.send(0, 2, whole(a=[2.0, 2.0]))
    served.member(C, 2)
    served.again()
    first, second, third = served.client(A), served.client(B, 1), served.client(C, 2)
    assert first.send(0, 2, whole(a=[2.0, 2.0])) == (1, True)
    # Who joined meanwhile has a round of its own, (0, 1) and 2 by itself again.
    assert third.send(0, 2, whole(a=[1.0, 1.0])) == (2, False)
    second.send(0, 2, whole(a=[0.0, 0.0]))
    assert weights(first, wanted=1) == weights(second, wanted=1) == [-1.0, -1.0]
    served.again()
    assert [weights(served.client(run, n)) for n, run in enumerate((A, B, C))] == [[-1.0, -1.0]] * 3
    assert not list((served.folder / "outer" / "fragment-000" / "contributions").iterdir())


def test_a_contribution_that_a_killed_service_had_no_time_to_pair_is_paired_by_the_next(served):
    served.member(A)
    served.member(B, 1)
    served.stop()
    folder = served.folder / "outer" / "fragment-000" / "contributions"
    for version in (2, 1, 3):
        (folder / f"{A}@{version}").write_bytes(whole(a=[float(version)] * 2))
    served.start()
    assert served.rounds.status()["waiting_for"] == [["run-b"], []]
    served.client(B, 1).send(0, 2, whole(a=[1.0, 1.0]))
    # The last one has the steps of the earlier ones, too.
    assert weights(served.client(A), wanted=1) == [-2.0, -2.0]


def test_eight_bits_travel_both_ways_and_each_member_reads_its_own_step(tmp_path):
    served = Served(tmp_path, method="gossip", bits=8, learning_rate=0.5)
    clients = [served.member(A), served.member(B, 1)]
    seen = [np.zeros(2, np.float32), np.zeros(2, np.float32)]
    clients[1].leave()
    clients[0].send(0, 2, encode({"a": np.array([1.0, 0.3], np.float32)}, 8)[0])
    seen[0] = np.array(weights(clients[0], wanted=1), np.float32)
    clients[1].join(SHAPES, 1.0)
    for number in (2, 3):
        for client, values in zip(clients, ([1.0, 0.3], [0.5, 0.1]), strict=True):
            client.send(0, 2 * number, encode({"a": np.array(values, np.float32)}, 8)[0])
        for place, client in enumerate(clients):
            found = client.fetch(0, number, number - 1 if number == 3 or place == 0 else 0, 0.0)
            assert found.kind == "update"
            seen[place] = seen[place] - decode(found.body, SHAPES[0], 8)["a"]
            assert weights(client, wanted=number) == seen[place].tolist()
    assert not np.array_equal(*seen)
    served.stop()


class Direct:
    """Members that call the service's state without HTTP, and what they have contributed to each fragment."""

    def __init__(self, folder, runs, draw):
        self.folder, self.clock, self.runs, self.draw = folder, Clock(), runs, draw
        self.rounds = Rounds(folder, self.clock)
        self.version = {run: [0, 0] for run in runs}
        self.given = [0.0, 0.0]
        for run in runs:
            self.join(run)
            if run == runs[0]:
                for fragment in (0, 1):
                    self.put(run, fragment, 0, 0.0, start=True)

    def join(self, run):
        terms = Terms(
            members=len(self.runs), every=2, method="gossip", bits=32, learning_rate=1.0, momentum=0.0,
            wait_timeout_s=10.0, fragments=[{"w": [1]}, {"w": [1]}],
        )  # fmt: skip
        self.rounds.join(Join(run=run, member=self.runs.index(run), name=run[0], terms=terms))

    def put(self, run, fragment, version, value, start=False):
        body, place = whole(w=[value]), {"run": run, "fragment": fragment, "version": version}
        self.rounds.part(Part(**place, offset=0, data=body))
        checksum = xxhash.xxh3_128_hexdigest(body)
        return self.rounds.put(Put(**place, size=len(body), checksum=checksum, start=start))

    def contribute(self, run):
        """Send the next steps of a fragment, or those sent before again while these wait."""
        number = self.draw.randrange(2)
        waits = run in self.rounds.fragments[number].open
        if not waits:
            self.version[run][number] += 1
            self.given[number] += self.version[run][number] % 3
        version = self.version[run][number]
        assert self.put(run, number, version, version % 3)["repeated"] == waits

    def again(self, run):
        self.rounds.close()
        self.rounds = Rounds(self.folder, self.clock)

    def leave(self, run):
        self.rounds.leave(FromMember(run=run))

    def wait(self, run):
        self.clock.now += 6.0
        self.rounds.close_overdue()

    def act(self):
        acts = [self.contribute, self.join, self.leave, self.wait, self.again]
        self.draw.choices(acts, [16, 2, 2, 3, 1])[0](self.draw.choice(self.runs))


@pytest.mark.parametrize("seed", range(3))
def test_whoever_comes_goes_or_is_killed_each_step_counts_once(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("asyncrl.extensions.outer.fragment.os.fsync", lambda _: None)
    monkeypatch.setattr("asyncrl.extensions.outer.fragment.sync", lambda _: None)
    direct = Direct(tmp_path / "outer", [letter * 32 for letter in "abcde"], random.Random(seed))
    for _ in range(200):
        direct.act()
    for run in direct.runs:
        direct.leave(run)
    for number, fragment in enumerate(direct.rounds.fragments):
        assert fragment.open == {}
        folders = [fragment.of(run).folder for run in direct.runs]
        weights = [float(fragment.read_weights(folder)["w"][0]) for folder in folders]
        # A step moves the sum of a pair's weights by what the two contributed, and drawing together does not.
        assert sum(weights) == pytest.approx(-direct.given[number], rel=1e-5)
        versions = [direct.version[run][number] for run in direct.runs]
        assert [fragment.counted(run) for run in direct.runs] == versions and sum(versions) > 30
        # Two rounds of each run at most are kept.
        assert len(list(fragment.folder.glob("round-*"))) <= 2 * len(direct.runs)
