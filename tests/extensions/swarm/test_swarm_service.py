"""Rollouts shared between runs over HTTP: who gets whose, what is kept, and what a run makes of it."""

import logging
from dataclasses import replace

import pytest

from asyncrl.data.codec import encode_group
from asyncrl.errors import ConfigError, InputError, UnavailableError
from asyncrl.extensions.swarm.client import SwarmClient
from asyncrl.extensions.swarm.curation import MAX_GROUP_BYTES, Terms
from asyncrl.extensions.swarm.messages import MAX_GROUPS
from asyncrl.extensions.swarm.pool import Quota, SwarmPool
from asyncrl.extensions.swarm.service import create_swarm_app
from asyncrl.extensions.swarm.store import Store
from asyncrl.extensions.swarm.trainer import check_token
from tests.app_thread import AppThread
from tests.credentials import RUN
from tests.train.factories import group

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
FAMILY, OTHER = "1" * 32, "2" * 32
TERMS = Terms("gridworld", num_token_ids=250, max_tokens=64, max_reward=1.0, inputs=frozenset())


class Served:
    def __init__(self, folder):
        self.folder, self.clients, self.number = folder, [], 0
        self.start()

    def start(self, **limits):
        self.store = Store(self.folder / "swarm", **limits)
        self.number += 1
        app = create_swarm_app(self.store, RUN.access("swarm"))
        self.app = AppThread(app, self.folder, str(self.number))

    def stop(self):
        while self.clients:
            self.clients.pop().close()
        self.app.close()
        self.store.close()

    def client(self, run, family=FAMILY, role="peer", token=None):
        bearer = RUN.issue(role).bearer("swarm") if token is None else token
        self.clients.append(SwarmClient(self.app.url, bearer, run, f"run-{run[0]}", family))
        return self.clients[-1]


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path)
    yield found
    found.stop()


def plain(name, rewards=(0.0, 1.0), **changes):
    made = group(name, list(rewards))
    return replace(made, trajectories=tuple(replace(t, info={}) for t in made.trajectories), **changes)


def pool(client, **changes):
    quota = Quota(**({"groups": 2, "share": 1.0, "max_age": 4, "seed": 0} | changes))
    return SwarmPool(quota, TERMS, client)


def test_a_run_gets_the_groups_of_other_runs_of_its_tokenizer_newest_first_and_each_once(served):
    a, b, c, other = served.client(A), served.client(B), served.client(C), served.client(A, OTHER)
    assert a.publish([b"one", b"two"]) == 2
    assert a.publish([b"two", b"three"]) == 1, "a repeated call adds what is new"
    assert b.publish([b"four"]) == 1
    found = c.fetch("", 0, 2)
    assert found.groups == [(B, "run-b", b"four"), (A, "run-a", b"three")]
    assert c.fetch(found.store, found.last, 9).groups == [], "older ones are not asked for again"
    assert [one.body for one in b.fetch("", 0, 9).groups] == [b"three", b"two", b"one"]
    assert other.fetch("", 0, 9).groups == []


def test_what_was_acknowledged_is_there_after_a_restart_and_a_new_store_begins_anew(served, tmp_path):
    served.client(A).publish([b"one"])
    before = served.client(B).fetch("", 0, 9)
    served.stop()
    served.start()
    again = served.client(B).fetch("", 0, 9)
    assert again == before
    assert served.client(B).fetch("f" * 32, 7, 9) == before, "numbers of another store say nothing here"


def test_the_oldest_groups_make_room_and_no_run_pushes_out_the_others(served):
    served.stop()
    served.start(max_bytes=100, max_of_run=3)
    a, b = served.client(A), served.client(B)
    b.publish([b"b" * 10])
    a.publish([b"%d" % i * 10 for i in range(9)])
    assert [one.body[:1] for one in served.client(C).fetch("", 0, 9).groups] == [b"8", b"7", b"6", b"b"]
    a.publish([b"x" * 75])
    assert [one.body[:1] for one in served.client(C).fetch("", 0, 9).groups] == [b"x", b"8", b"7"]
    runs = {run["name"]: (run["groups"], run["bytes"]) for run in served.store.status()["runs"]}
    assert runs == {"run-a": (3, 95)}


def test_many_groups_travel_in_several_calls(served):
    a = served.client(A)
    assert a.publish([b"%d" % i for i in range(MAX_GROUPS + 1)]) == MAX_GROUPS + 1
    assert a.publish([bytes([i]) * MAX_GROUP_BYTES for i in range(6)]) == 6
    with pytest.raises(InputError, match="groups"):
        a.publish([bytes(MAX_GROUP_BYTES + 1)])


def test_only_trainers_and_peers_are_let_in_and_a_wrong_token_is_told_at_the_start(served):
    for role in ("trainer", "peer"):
        served.client(A, role=role).check()
    stranger = served.client(A, token="none")
    with pytest.raises(ConfigError, match=r"^swarm\.token_file: the swarm at http.* does not take the token"):
        check_token(stranger, served.app.url)
    served.clients.remove(stranger)
    with pytest.raises(ConfigError, match="token"):
        served.client(A, token=RUN.issue("worker").bearer("engine")).fetch("", 0, 1)


def test_a_pool_takes_each_peers_group_once_and_counts_what_it_refuses(served, caplog):
    a, b = served.client(A), served.client(B)
    flat, rich = plain("flat", [1.0, 1.0]), plain("rich", [0.0, 9.0])
    renamed = replace(plain("t1"), id="again", worker="w")
    a.publish([encode_group(one) for one in (plain("t1"), renamed, flat, rich)] + [b"garbage"])
    taking = pool(b)
    taking.version = 3
    with caplog.at_level(logging.WARNING):
        taking.exchange()
    assert dict(taking.counts) == {
        "fetched": 5, "refused_repeated": 1, "refused_signal": 1, "refused_reward": 1, "refused_undecodable": 1,
    }  # fmt: skip
    assert "'run-a' in the swarm are not trained: a reward is beyond swarm.max_reward" in caplog.text
    (kept,) = taking.draw(3, [plain("own")])
    assert (kept.trajectories[0].info, kept.trajectories[0].peer) == ({}, A)
    assert [t.reward for t in kept.trajectories] == [0.0, 1.0]
    assert taking.draw(3, [plain("own")]) == [kept]
    assert taking.metrics(3)["swarm/mixed_tokens"] == 12.0
    assert taking.draw(4, [plain("own")]) == []


def test_groups_with_other_reward_components_are_not_drawn(served):
    a, b = served.client(A), served.client(B)
    a.publish([encode_group(plain("t1"))])
    taking = pool(b)
    taking.exchange()
    bare = plain("own")
    bare = replace(bare, trajectories=tuple(replace(t, components={}) for t in bare.trajectories))
    assert taking.draw(0, [bare]) == []
    assert taking.counts["refused_components"] == 1


def test_a_steps_groups_reach_others_but_the_poisoned_ones_and_those_that_are_too_large(served, monkeypatch):
    a, b = served.client(A), served.client(B)
    giving = pool(a)
    giving.trained([plain("t1"), plain("t2"), plain("t3", [0.0, 1.0] * 8)], 0, ["g-t2"])
    assert giving.version == 1
    monkeypatch.setattr("asyncrl.extensions.swarm.pool.MAX_GROUP_BYTES", len(encode_group(plain("t1"))) + 100)
    giving.trained([plain("t4"), plain("t5", [0.0, 1.0] * 8)], 1)
    giving.exchange()
    assert (giving.counts["published"], giving.counts["too_large"]) == (3, 1)
    giving.exchange()
    assert giving.counts["published"] == 3, "nothing is sent twice"
    taking = pool(b)
    taking.exchange()
    assert sorted(g.task.id.rpartition("/")[2] for g in taking.groups.values()) == ["t1", "t3", "t4"]


def test_a_pool_goes_on_without_the_service_and_says_so_once(served, caplog):
    client = served.client(B)
    taking = pool(client)
    taking.trained([plain("t1")], 0)
    served.app.close()
    with pytest.raises(UnavailableError):
        taking.exchange()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            taking.attempt()
    assert caplog.text.count("training goes on with own groups") == 1
    assert taking.metrics(0)["swarm/unreachable"] == 1.0
    assert taking.draw(1, []) == []
    served.store.close()
    served.start()
    client = served.client(B)
    taking.service = client
    taking.attempt()
    assert "the swarm answers again" in caplog.text
    assert taking.counts["published"] == 1, "what waited is not lost"


def test_a_checkpoint_brings_back_the_groups_and_what_has_come_before(served):
    a, b = served.client(A), served.client(B)
    a.publish([encode_group(plain(f"t{i}")) for i in range(5)])
    first = pool(b)
    first.exchange()
    first.draw(0, [plain("own")])
    again = pool(b)
    again.load_state_dict(first.state_dict())
    assert list(again.groups) == list(first.groups)
    assert len(again.groups) == 3
    assert [g.id for g in again.draw(1, [plain("own")])] == [g.id for g in first.draw(1, [plain("own")])]
    a.publish([encode_group(plain("t0", worker="x"))])
    again.exchange()
    assert again.counts["refused_repeated"] == 1, "also of groups that were drawn before"
