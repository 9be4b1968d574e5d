"""The file of keys: who has which, and what each may have."""

import pytest

from asyncrl.credentials import Caller
from asyncrl.errors import ConfigError
from asyncrl.extensions.tinker.clients import OWNER, Client, ClientAccess, read_keys, visible
from tests.credentials import RUN, TOKEN

KEYS = """
[alice]
key = "alice-has-this-key"
training_clients = 2
sampled_tokens_a_day = 0
["bob.b"]
key = "tml-bob-has-that-key-"
"""


def written(tmp_path, text, mode=0o600):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_caller_is_known_by_its_key_and_the_owner_by_the_servers_token(tmp_path):
    access = ClientAccess(RUN, read_keys(written(tmp_path, KEYS)))
    alice, bob = (access.caller(b"Bearer " + key) for key in (b"alice-has-this-key", b"bob-has-that-key-"))
    assert (alice, bob) == (Caller("client", "alice"), Caller("client", "bob.b"))
    assert access.client(alice) == Client("alice", training_clients=2, sampled_tokens_a_day=0)
    assert access.client(bob) == Client("bob.b")
    run = access.caller(f"Bearer {TOKEN}".encode())
    assert run == Caller("run") and access.client(run) is OWNER
    for other in (b"Bearer alice-has-this-ke", b"Basic alice-has-this-key", b"", b"Bearer "):
        assert access.caller(other) is None


def test_a_client_sees_its_own_and_the_owner_all():
    assert visible("alice", "alice") and not visible("alice", "bob") and not visible("alice", "")
    assert visible("", "alice") and visible("", "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
def test_a_file_that_others_can_open_is_refused(tmp_path, mode):
    with pytest.raises(ConfigError, match=r"keys.toml: is open to other users; chmod 600"):
        read_keys(written(tmp_path, KEYS, mode))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no client"),
        ("x", "cannot be read"),
        ("a = 1", "a: must be a table named by letters"),
        ('["a b"]\nkey = "0123456789abcdef"', "a b: must be a table named by letters"),
        ("[a]", "a.key: must be 16 or more printable characters"),
        ('[a]\nkey = "tml-0123456789ab"', "a.key: must be 16 or more printable characters"),
        ('[a]\nkey = "0123456789abcdef"\ntokens = 1', "a.tokens: is no quota; there are training_clients,"),
        ('[a]\nkey = "0123456789abcdef"\ntraining_clients = -1', "must be a whole number from 0, got -1"),
        ('[a]\nkey = "0123456789abcdef"\ntraining_clients = true', "must be a whole number from 0, got True"),
        ('[a]\nkey = "0123456789abcdef"\n[b]\nkey = "tml-0123456789abcdef"', "a and b have the same key"),
    ],
)
def test_a_wrong_file_is_refused_by_its_place(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why):
        read_keys(written(tmp_path, text))


def test_no_client_has_the_servers_token_as_its_key(tmp_path):
    with pytest.raises(ConfigError, match="the key of a is the server's token; give it one of its own"):
        ClientAccess(RUN, read_keys(written(tmp_path, f'[a]\nkey = "{TOKEN}"')))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")
