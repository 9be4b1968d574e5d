"""Credentials of a run: each process gets its own, and none can be made from another's."""

import hashlib
import hmac
import stat

import pytest

from asyncrl.credentials import (
    JOIN_FILE,
    RUN_FILE,
    VARIABLE,
    Caller,
    Credentials,
    join_credentials,
    may_join,
    own_token,
    read_credentials,
    run_credentials,
    stored_credentials,
)
from asyncrl.errors import ConfigError
from tests.credentials import RUN, TOKEN


def header(credentials, service):
    return f"Bearer {credentials.bearer(service)}".encode()


def test_a_service_knows_its_callers_by_name():
    worker = RUN.issue("worker", "rollout/0 \u00fc")
    assert RUN.access("buffer").caller(header(worker, "buffer")) == Caller("worker", "rollout/0 \u00fc")
    assert RUN.access("buffer").caller(header(RUN.issue("trainer"), "buffer")) == Caller("trainer")
    assert RUN.access("buffer").caller(f"Bearer {TOKEN}".encode()) == Caller("run")


def test_a_token_is_good_for_one_kind_of_service_one_caller_and_one_run():
    worker = RUN.issue("worker", "rollout-0")
    assert RUN.access("env").caller(header(worker, "buffer")) is None
    said, _, mac = worker.bearer("buffer").partition(":")
    for forged in ("trainer", "worker/rollout-1", "run", "worker/rollout-0/x", ""):
        assert RUN.access("buffer").caller(f"Bearer {forged}:{mac}".encode()) is None
    other = read_credentials("the-token-of-another-run")
    assert other.access("buffer").caller(header(worker, "buffer")) is None
    for odd in (b"", b"Bearer ", b"Bearer :", b"Basic " + said.encode(), b"Bearer \xff:" + mac.encode()):
        assert RUN.access("buffer").caller(odd) is None


@pytest.mark.parametrize(
    ("role", "calls", "serves"),
    [
        ("trainer", {"buffer", "engine", "old_policy", "outer", "swarm"}, {"weights"}),
        ("peer", {"swarm"}, set()),
        ("old_policy", {"buffer"}, {"old_policy"}),
        ("worker", {"buffer", "engine", "env", "gateway", "reward_model"}, {"rollout"}),
        ("engine", {"buffer", "weights"}, {"engine", "weights"}),
        ("env", {"buffer"}, {"env"}),
        ("replica", set(), {"buffer"}),
        ("reward_model", set(), {"reward_model"}),
        ("judge_engine", set(), {"engine"}),
        ("guest", {"buffer"}, set()),
    ],
)
def test_a_process_is_given_what_it_needs_and_cannot_make_more(role, calls, serves):
    issued = read_credentials(RUN.issue(role, "n").text)
    assert issued == RUN.issue(role, "n")
    assert (set(issued.bearers), set(issued.keys)) == (calls, serves)
    assert TOKEN not in issued.text
    with pytest.raises(ConfigError, match="cannot issue others"):
        issued.issue("trainer")
    for kind in {"buffer", "engine", "env", "rollout"} - serves:
        with pytest.raises(ConfigError, match="does not serve as"):
            issued.access(kind)


def test_a_run_makes_a_token_that_only_its_owner_can_read_and_keeps_it(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    first = run_credentials(tmp_path)
    for name in (RUN_FILE, JOIN_FILE):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert len(first.run_token) == 64
    assert run_credentials(tmp_path) == first
    assert run_credentials(tmp_path.parent) != first
    guest = read_credentials((tmp_path / JOIN_FILE).read_text())
    assert guest.caller == Caller("guest", "rollout")
    assert guest == join_credentials(stored_credentials(tmp_path))
    assert first.run_token not in guest.text


@pytest.mark.parametrize(
    ("role", "kind"), [("engine", "engine"), ("env", "env"), ("worker", "rollout"), ("gateway", "gateway")]
)
def test_what_a_member_that_has_joined_knows_is_good_at_no_other_process(role, kind):
    """Neither the key by which it checks its callers nor a token that it was called with."""
    mallory, other = (RUN.issue(role, name, joins=True) for name in ("mallory", "other"))
    for who in ("run", "trainer", "worker"):
        told = RUN.bearer_for(Caller(who, "w"), kind, mallory.caller)
        made = f"{who}:{hmac.new(mallory.keys[kind].encode(), who.encode(), hashlib.sha256).hexdigest()}"
        for token in filter(None, (told, made)):
            header = f"Bearer {token}".encode()
            assert mallory.access(kind).caller(header) is not None
            assert other.access(kind).caller(header) is None
            assert RUN.access(kind).caller(header) is None, f"{who} at the run's own {kind}"
    assert mallory.access(kind).caller(f"Bearer {TOKEN}".encode()) == Caller("run")


def test_callers_are_given_tokens_for_members_of_the_kinds_that_they_call_only():
    member = Caller("engine", "m")
    assert RUN.bearer_for(Caller("worker", "w"), "engine", member).startswith("worker/w:")
    assert [RUN.bearer_for(Caller(who, "w"), "engine", member) for who in ("env", "guest", "engine")] == [
        ""
    ] * 3


def test_a_join_token_is_for_the_roles_it_names_and_for_workers_by_default():
    def allowed(credentials):
        return [
            role for role in ("rollout", "engine", "env", "gateway") if may_join(credentials.caller, role)
        ]

    assert allowed(join_credentials(RUN)) == ["rollout"]
    assert allowed(join_credentials(RUN, ["env", "engine"])) == ["engine", "env"]
    assert allowed(RUN.issue("guest")) == ["rollout"]
    assert allowed(join_credentials(RUN, ["gateway"])) == ["gateway"]
    assert allowed(RUN) == ["rollout", "engine", "env", "gateway"]
    with pytest.raises(
        ConfigError, match="--role: must be one of rollout, engine, env, gateway, got 'trainer'"
    ):
        join_credentials(RUN, ["trainer"])


def test_a_services_own_token_is_made_once_and_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "agents"
    made = own_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert own_token(path) == made
    assert made.access("gateway").caller(f"Bearer {path.read_text().strip()}".encode()) == Caller("run")
    assert made.access("gateway").caller(f"Bearer {TOKEN}".encode()) is None
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="is open to other users"):
        own_token(path)
    with pytest.raises(ConfigError, match="nowhere/agents: "):
        own_token(tmp_path / "nowhere" / "agents")


def test_credentials_are_narrowed_to_some_services():
    worker = RUN.issue("worker", "w", joins=True)
    narrow = worker.only("buffer")
    assert narrow.bearers == {"buffer": worker.bearer("buffer")}
    assert (narrow.caller, narrow.keys) == (worker.caller, {})
    with pytest.raises(ConfigError, match="does not serve as rollout"):
        narrow.access("rollout")


def test_a_token_that_others_could_read_is_not_used(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    run_credentials(tmp_path)
    (tmp_path / RUN_FILE).chmod(0o640)
    with pytest.raises(ConfigError, match="is open to other users; remove it"):
        run_credentials(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "short", "with space in the middle", "\u00fcber" * 10, "asyncrl-1.????"]
)
def test_what_is_no_token_is_said_to_be_none(text):
    with pytest.raises(ConfigError, match=r"here: (must be a run's token|holds damaged credentials)"):
        read_credentials(text, "here")


def test_credentials_are_not_shown_by_accident():
    assert isinstance(RUN, Credentials)
    for secret in (TOKEN, RUN.bearer("buffer"), RUN.keys["buffer"]):
        assert secret not in repr(RUN)
