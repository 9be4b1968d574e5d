"""Pages of lists, each client's own, and what clients have used."""

import pytest

from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.listings import Listings, Page
from asyncrl.extensions.tinker.tables import CREATE, JSON, SAMPLE, Checkpoint, PolicyRecord, Request

OF = {"s": "alice", "t": "bob", "u": ""}


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path)
    for session, client in OF.items():
        made.add_session(session, {}, client)
        for slot in (0, 1):
            name = f"{session}:train:{slot}"
            made.add_policy(PolicyRecord(name, session, {}, 0, 10.0 + slot, 1.0, None, client=client))
            made.add_checkpoint(Checkpoint(name, "weights", "one", 20.0 + slot, 7))
    yield made
    made.close()


@pytest.fixture
def listings(ledger):
    return Listings(ledger)


def test_a_client_gets_pages_of_its_own_newest_first_and_the_owner_of_all(listings):
    found, total = listings.policies(Page("alice", 1, 0))
    assert ([one.id for one in found], total) == (["s:train:1"], 2)
    found, total = listings.policies(Page("alice", 5, 1))
    assert ([one.id for one in found], total) == (["s:train:0"], 2)
    assert listings.policies(Page("", 0, 0)) == ([], 6)
    assert listings.policies(Page("nobody", 9, 0)) == ([], 0)
    found, total = listings.checkpoints(Page("bob", 9, 0))
    assert ([one.policy for one in found], total) == (["t:train:1", "t:train:0"], 2)
    assert len(listings.checkpoints(Page("", 4, 0))[0]) == 4
    assert listings.sessions(Page("bob", 9, 0)) == ["t"] and len(listings.sessions(Page("", 9, 0))) == 3
    assert (
        listings.policies(Page("alice", -1, -5)) == ([], 2) == listings.policies(Page("alice", 2**80, 2**80))
    )


def test_a_policys_newest_checkpoint_and_a_sessions_policies_and_samplers(listings, ledger):
    ledger.add_checkpoint(Checkpoint("s:train:0", "weights", "two", 30.0, 7))
    ledger.add_sampler("s:sample:0", "s", "", "")
    assert listings.newest("s:train:0", "weights").name == "two"
    assert listings.newest("s:train:0", "sampler_weights") is None
    assert listings.of_session("policies", "s") == ["s:train:1", "s:train:0"]
    assert listings.of_session("samplers", "s") == ["s:sample:0"]


def test_what_a_client_has_in_flight_and_at_once(listings, ledger):
    for owner, kind in (("s:create:2", CREATE), ("s:sample:0", SAMPLE), ("t:sample:0", SAMPLE)):
        ledger.receive(Request(owner, 0, kind, b"a"))
    assert (listings.in_flight("alice"), listings.in_flight("bob"), listings.in_flight("nobody")) == (2, 1, 0)
    assert listings.trained_at_once("alice") == 3
    ledger.answer(Request("s:create:2", 0, CREATE, b"a"), b"x", JSON)
    ledger.remove_policy("s:train:0", b"why")
    assert (listings.in_flight("alice"), listings.trained_at_once("alice")) == (1, 1)


def test_tokens_are_counted_by_client_and_day(listings, ledger, monkeypatch):
    now = [86400.0 * 100]
    for name in ("ledger", "listings"):
        monkeypatch.setattr(f"asyncrl.extensions.tinker.{name}.stamp_s", lambda: now[0])
    assert listings.today("alice") == (0, 0)
    ledger.use("alice", steps=1, trained=5)
    ledger.use("alice", trained=2, sampled=3)
    assert listings.today("alice") == (7, 3) and listings.today("bob") == (0, 0)
    now[0] += 86400
    assert listings.today("alice") == (0, 0)
    ledger.use("alice", sampled=1)
    assert listings.by_client()["alice"] == {
        "sessions": 1, "policies": 2, "steps": 1, "tokens_trained": 7, "tokens_sampled": 4,
    }  # fmt: skip
    assert listings.by_client()["bob"]["tokens_trained"] == 0
