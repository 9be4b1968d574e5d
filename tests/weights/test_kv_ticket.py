"""Tickets to KV caches: sealed, fresh, and to one version of the weights."""

import pytest

from asyncrl.weights.kv_ticket import FRESH_S, seal, unseal
from asyncrl.weights.vllm_handover import TICKET, VERSION, accept

PARAMS = {
    "do_remote_prefill": True,
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[1, 2]],
}


def test_a_ticket_gives_back_what_was_sealed_in_it():
    assert unseal(seal(PARAMS, 3, 100.0, "key"), 3, 100.0 + FRESH_S, "key") == PARAMS


@pytest.mark.parametrize(
    ("version", "now", "key"), [(4, 100.0, "key"), (3, 100.5 + FRESH_S, "key"), (3, 100.0, "other")]
)
def test_a_ticket_to_other_weights_an_old_one_and_one_of_another_run_are_not_used(version, now, key):
    assert unseal(seal(PARAMS, 3, 100.0, "key"), version, now, key) is None


def test_a_ticket_that_comes_too_late_is_told_and_one_to_other_weights_is_not(caplog):
    ticket = seal(PARAMS, 3, 100.0, "key")
    assert unseal(ticket, 4, 200.0, "key") is None
    assert caplog.messages == []
    assert unseal(ticket, 3, 117.3, "key") is None
    assert caplog.messages == ["a KV ticket came after 17.3 s, too late: its prompt is computed here"]


def test_no_byte_of_a_ticket_can_be_changed():
    ticket = seal(PARAMS, 3, 100.0, "key")
    for place in range(len(ticket)):
        changed = ticket[:place] + bytes([ticket[place] ^ 1]) + ticket[place + 1 :]
        assert unseal(changed, 3, 100.0, "key") is None
    for cut in range(len(ticket)):
        assert unseal(ticket[:cut], 3, 100.0, "key") is None


def test_a_connector_sees_tickets_alone_and_never_a_host_that_a_client_names():
    ticket = seal(PARAMS, 3, 100.0, "key")
    assert accept({TICKET: ticket}, 3, "key", 100.0) == PARAMS | {VERSION: 3}
    assert accept(PARAMS, 3, "key", 100.0) is None
    assert accept({TICKET: ticket.hex()}, 3, "key", 100.0) is None
    assert accept(PARAMS | {VERSION: 3}, 3, "key", 100.0) is None
    # Of a request to prefill nothing else is taken over.
    assert accept(PARAMS | {"do_remote_decode": True}, 3, "key", 100.0) == {"do_remote_decode": True}
    assert accept(None, 3, "key", 100.0) is None
