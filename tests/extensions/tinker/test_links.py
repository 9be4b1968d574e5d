"""Addresses of files are those that the server has made, for as long as it said."""

from urllib.parse import parse_qs

import pytest

from asyncrl.credentials import read_credentials
from asyncrl.errors import InputError
from asyncrl.extensions.tinker import links as module
from asyncrl.extensions.tinker.links import Links, links_of

FIELDS = ("s:train:0", "out", "adapter_model.safetensors")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module, "stamp_s", lambda: now[0])
    return now


def read(query):
    return {name: values[0] for name, values in parse_qs(query).items()}


def test_an_address_leads_to_its_file_until_its_time_is_over(clock):
    links = Links("key")
    given = read(links.query(*FIELDS, expires=1060.0))
    assert links.check(given) == FIELDS
    clock[0] = 1061.0
    with pytest.raises(InputError, match="the time of this address is over; ask for another"):
        links.check(given)


@pytest.mark.parametrize("field", ["policy", "name", "file", "expires", "signature"])
def test_an_address_that_was_changed_is_refused(clock, field):
    given = read(Links("key").query(*FIELDS, expires=1060.0))
    for changed in ({**given, field: given[field] + "1"}, {k: v for k, v in given.items() if k != field}):
        with pytest.raises(InputError, match="this server has made no such address"):
            Links("key").check(changed)
    with pytest.raises(InputError, match="no such address"):
        Links("other").check(given)


def test_a_server_that_is_started_again_with_its_token_knows_its_addresses(clock):
    first, second, other = (links_of(read_credentials(token * 16)) for token in "aab")
    given = read(first.query(*FIELDS, expires=1060.0))
    assert second.check(given) == FIELDS
    with pytest.raises(InputError, match="no such address"):
        other.check(given)
