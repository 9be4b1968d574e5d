"""Who may call what of the buffer: the calls of every run, and what optional features add to them."""

from asyncrl.services.buffer.access import CALLS, ROLES


def test_a_feature_adds_calls_and_roles_and_takes_none_away():
    assert ROLES["/v1/peek"] == {"trainer", "old_policy"}
    assert ROLES["/v1/opponents"] == {"trainer"}
    assert ROLES["/v1/judge/budget"] == {"worker"}
    assert all(roles <= ROLES[call] for call, roles in CALLS.items())
    assert CALLS["/v1/peek"] == {"trainer"}
